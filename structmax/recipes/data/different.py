"""Random instances, none of them twice."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from structmax.training.errors import RunError

T = TypeVar("T")
# draws in a row without a new instance: there are too few of them
PATIENCE = 100_000


def different(
    draw: Callable[[], T | None],
    count: int,
    key: Callable[[T], Hashable],
    without: Iterable[T] = (),
    what: str = "sentences",
) -> list[T]:
    """So many instances as they are drawn, none of them twice or among `without`.

    Args:
        draw: an instance, or None for one that does not fit.
        count: how many.
        key: what two instances that are the same have in common.
        without: instances to leave out, such as those of a test set.
        what: they are, for the message if there are too few of them.

    Examples:
        >>> import random
        >>> from structmax.recipes.data.different import different
        >>> chance = random.Random(0)
        >>> sorted(different(lambda: chance.randrange(4), 3, int, without=[1]))
        [0, 2, 3]
    """
    seen = {key(each) for each in without}
    found: list[T] = []
    misses = 0
    while len(found) < count:
        drawn = draw()
        if drawn is not None and key(drawn) not in seen:
            seen.add(key(drawn))
            found.append(drawn)
            misses = 0
        elif (misses := misses + 1) == PATIENCE:
            raise RunError(
                f"There should be {count} different {what}, but only {len(found)} were found before {PATIENCE:,} draws "
                "in a row found no new one. Try fewer, or longer ones."
            )
    return found
