"""Code that several structures share."""

# Imported at once, and not with the first kernel: it sees to the threads when the process forks.
from structmax.numerics import rows as rows
