"""One process at a time in a folder. The system holds the lock, and frees it when the process ends, however it ends."""

import errno
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from structmax.training.errors import RunError

try:
    import fcntl
except ImportError:
    # on Windows, which has another way
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
# what systems answer when another process holds the lock
HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
# Windows locks bytes, which other processes then cannot read: one far behind what is written
FAR = 1 << 30


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder. It is created if missing, and removed again if nothing was put into it.

    Raises:
        RunError: another process holds it, or it cannot be written to.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _claimed(path)
    except OSError as error:
        raise RunError(f"{folder} should be a folder that can be written to, but is not: {error.strerror}.") from error
    try:
        yield
    finally:
        # Windows does not take away what is open: there the file stays, and does no harm
        with suppress(OSError):
            path.unlink()
        os.close(file)
        with suppress(OSError):
            for place in made:
                place.rmdir()


def _claimed(path: Path) -> int:
    """The lock's open file."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(file, path)
            if _is_at(file, path):
                os.truncate(file, 0)
                os.write(file, f"process {os.getpid()} on {platform.node()}".encode())
                return file
        except BaseException:
            os.close(file)
            raise
        # its holder removed the file between our two checks: a lock on it has no effect
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: int, path: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _lock_a_byte(file)
    except OSError as error:
        if error.errno not in HELD:
            # some network drives know no locks
            warnings.warn(f"{path.parent} cannot be locked ({error.strerror}). Start one run at a time.", stacklevel=2)
            return
        holder = os.read(file, 1000).decode(errors="replace") or "another process"
        raise RunError(
            f"{path.parent} should be used by one run at a time, but {holder} uses it. "
            "Wait until it ends, or choose another --name."
        ) from None


def _lock_a_byte(file: int) -> None:
    import msvcrt

    os.lseek(file, FAR, os.SEEK_SET)
    try:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    finally:
        os.lseek(file, 0, os.SEEK_SET)
