"""Structures as lists of their parts, for one program."""

import triton
import triton.language as tl

# How many structures, and how many parts of each, are read together.
STRUCTURES, LISTED = tl.constexpr(8), tl.constexpr(64)


@triton.jit
def at(p_first, p_rest, split, o_part):
    """Where parts of a vector are that has its first `split` parts in one tensor and the rest in another."""
    return tl.where(o_part < split, p_first + o_part, p_rest + (o_part - split))


@triton.jit
def add_listed(p_out, p_rest, split, p_lists, p_weights, factor, count, longest, P, L):
    """out (P,) += factor · Σ_k weights[k] y_k over the first `count` of lists (…, L), of which `longest` are looked at.

    The parts of out from `split` on are in `p_rest`; what is P is no part. Many are read at once, but one structure is
    added after the other; a part that it lists twice has the same number added each time. So the order of threads
    changes nothing.
    """
    o_k = tl.arange(0, STRUCTURES)
    for first_k in range(0, count, STRUCTURES):
        m_k = first_k + o_k < count
        b_weight = factor * tl.load(p_weights + first_k + o_k, mask=m_k, other=0.0)
        for first in range(0, longest, LISTED):
            o_list = first + tl.arange(0, LISTED)
            m_list = (m_k & (b_weight != 0))[:, None] & (o_list < longest)[None, :]
            b_part = tl.load(p_lists + (first_k + o_k)[:, None] * L + o_list[None, :], mask=m_list, other=P)
            b_added = tl.zeros((STRUCTURES, LISTED), tl.float64) + b_weight[:, None]
            for k in tl.static_range(STRUCTURES):
                tl.debug_barrier()
                m_added = (b_part < P) & (o_k == k)[:, None]
                tl.atomic_add(at(p_out, p_rest, split, b_part), b_added, mask=m_added, sem="relaxed")
