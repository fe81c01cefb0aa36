"""What modules over dependency trees are given: words without the root, and arcs between all nodes."""

from torch import Tensor

from structmax import check


def check_words(words: Tensor, size: int) -> None:
    """One row of `size` features for each word."""
    check.floating("words", words)
    if words.dim() < 2 or words.shape[-1] != size:
        raise ValueError(
            f"`words` should have shape (…, N, {size}), a row for each word, but have {tuple(words.shape)}."
        )


def check_arcs(name: str, arcs: Tensor, words: Tensor) -> None:
    """Arcs arc[h, m] over the words and the root, node 0."""
    check.same_device(name, arcs, words)
    *batch, N, _ = words.shape
    wanted = (*batch, N + 1, N + 1)
    if tuple(arcs.shape) != wanted:
        hint = f" Labelled arcs are summed over their labels: try `{name}.sum(-1)`." if arcs.dim() > len(wanted) else ""
        raise ValueError(
            f"`{name}` should have shape {wanted}, row and column 0 for the root, to match `words` "
            f"{tuple(words.shape)}, but have {tuple(arcs.shape)}.{hint}"
        )
