"""Where a run comes from: the command, the day, and the commit of the project it was started in."""

import subprocess
from datetime import datetime
from typing import Any

# in seconds: a project on a slow drive does not hold a run up for longer
PATIENCE = 2.0


def origin(command: str | None) -> dict[str, Any]:
    """What `origin.json` holds.

    Args:
        command: the command line that starts the same run again; None if there is none.

    Examples:
        >>> sorted(origin("structmax run clusters"))
        ['command', 'commit', 'started']
    """
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"command": command, "started": started, "commit": commit()}


def commit() -> str | None:
    """The commit of the current folder's project, with "+ changes" where files differ from it; None without one."""
    question = ["git", "--no-optional-locks", "describe", "--always", "--exclude=*", "--dirty= + changes"]
    try:
        answer = subprocess.run(
            question, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    # there is no git, no project, no commit yet, or no answer in time
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return answer.stdout.strip() or None
