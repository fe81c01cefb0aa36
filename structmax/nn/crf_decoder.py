"""The best tags of a CRF in operators of torch alone, for programs that run without Python and without this library."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from structmax import check
from structmax.half import widened
from structmax.nn.crf import CRF
from structmax.parts import Tensors


class CRFDecoder(nn.Module):
    """The best tags of a `CRF` as a module that `torch.export` and AOTInductor turn into a program of its own.

    It answers what `CRF.argmax` answers. That one calls compiled kernels through Python, so an exported program of it
    needs this library. Here the recursion is two loops of torch, over the steps and back: the exported program holds
    nothing but operators of torch, and a package of AOTInductor runs in C++. It takes any batch and any number of
    steps. Use `CRF` for training, where it is many times faster.

    Args:
        crf: the layer whose transitions and constraints it uses; they are shared, not copied.

    Examples:
        >>> import torch, structmax
        >>> crf = structmax.nn.CRF(num_tags=3, batch_first=True)
        >>> decoder = structmax.nn.CRFDecoder(crf)
        >>> emissions, mask = torch.randn(2, 4, 3), torch.tensor([[True] * 4, [True, True, False, False]])
        >>> torch.equal(decoder(emissions, mask), crf.argmax(emissions, mask))
        True
        >>> sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("steps", min=2)}
        >>> program = torch.export.export(decoder, (emissions, mask), dynamic_shapes=(sizes, sizes))
        >>> program.module()(torch.randn(5, 9, 3), torch.ones(5, 9, dtype=torch.bool)).shape
        torch.Size([5, 9])

    Reference:
        Viterbi 1967, Error bounds for convolutional codes and an asymptotically optimum decoding algorithm.
    """

    def __init__(self, crf: CRF) -> None:
        super().__init__()
        check.instance("crf", crf, CRF, "a `structmax.nn.CRF`")
        self.crf = crf

    def forward(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The best tags, −1 at steps left out and where no sequence is allowed: shaped like `mask`.

        Args:
            emissions: (N, …, C), or (…, N, C) if the CRF has `batch_first`.
            mask: (N, …) or (…, N), True for the steps that are kept, in any pattern.
        """
        check.a_tensor("mask", mask)
        scores, chain = self.crf.scores(emissions, mask)
        # An exported program has sizes of any number, which a check would fix.
        if not torch.compiler.is_compiling():
            chain.check(scores)
        # discrete: a gradient would be 0
        unary, pairwise, start, end = (t.detach() for t in widened(scores))
        assert chain.keep is not None
        if unary.dim() == 2:
            return _best(unary.unsqueeze(0), pairwise, start, end, chain.keep.unsqueeze(0)).squeeze(0)
        tags = _best(unary.flatten(0, -3), pairwise, start, end, chain.keep.flatten(0, -2))
        tags = tags.reshape(chain.keep.shape)
        return tags if self.crf.batch_first else tags.movedim(-1, 0)


def _best(unary: Tensor, pairwise: Tensor, start: Tensor, end: Tensor, keep: Tensor) -> Tensor:
    """Tags (B, N) of unary (B, N, C), one matrix (C, C), start and end (C,), and keep (B, N)."""
    # The loops name the batch's size, without which AOTInductor does not know that of their results.
    batch, _, labels = unary.shape
    steps = unary.movedim(1, 0).contiguous(), keep.movedim(1, 0).contiguous()
    same = torch.arange(labels, device=unary.device)

    def extend(carry: Tensors, step: Tensors) -> tuple[Tensors, Tensor]:
        """The best score up to this step by its tag, and the tag before; a step left out changes nothing."""
        (best, begun), (here, kept) = carry, step
        reached, before = (best.unsqueeze(-1) + pairwise).max(-2)
        reached = torch.where(begun.unsqueeze(-1), reached, start) + here
        m_kept = kept.unsqueeze(-1)
        return (torch.where(m_kept, reached, best), begun | kept), torch.where(
            m_kept, before, same.expand(batch, labels)
        )

    (best, _), before = _loop(extend, (unary.new_zeros(batch, labels), keep.new_zeros(batch)), steps)
    top, last = (best + end).max(-1)

    def follow(carry: Tensors, step: Tensors) -> tuple[Tensors, Tensor]:
        (tag,), (before, kept) = carry, step
        out = torch.where(kept, tag, tag.new_full((batch,), -1))
        return (before.gather(-1, tag.unsqueeze(-1)).squeeze(-1),), out

    _, tags = _loop(follow, (last,), (before, steps[1]), reverse=True)
    return torch.where(top > -math.inf, tags, -1).movedim(0, 1)


def _loop(
    body: Callable[[Tensors, Tensors], tuple[Tensors, Tensor]], carry: Tensors, steps: Tensors, reverse: bool = False
) -> tuple[Tensors, Tensor]:
    """The last carry, and what each step returns: (N, …)."""
    if torch.compiler.is_compiling():
        return scan(body, carry, steps, reverse=reverse)
    out = []
    for step in reversed(list(zip(*steps, strict=True))) if reverse else zip(*steps, strict=True):
        carry, here = body(carry, step)
        out.append(here)
    return carry, torch.stack(out[::-1] if reverse else out)
