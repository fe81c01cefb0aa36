"""What recipes share: the task they describe, the loop that trains it, and the folder of the run."""

from structmax.training.errors import DataError, Diverged, Interrupted, RunError
from structmax.training.run import changed, name_of, run, versions
from structmax.training.run_folder import RunFolder
from structmax.training.task import Settings, Task, option
from structmax.training.watcher import Place, Watcher

__all__ = [
    "DataError",
    "Diverged",
    "Interrupted",
    "Place",
    "RunError",
    "RunFolder",
    "Settings",
    "Task",
    "Watcher",
    "changed",
    "name_of",
    "option",
    "run",
    "versions",
]
