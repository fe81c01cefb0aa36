"""Structures as lists of their parts, for one program."""

import triton
import triton.language as tl

# Parts of one list that are looked at together.
LISTED = tl.constexpr(128)


@triton.jit
def add_listed(p_out, p_lists, p_weights, factor, count, longest, P, L):
    """out (P,) += factor · Σ_k weights[k] y_k over the first `count` of lists (…, L), of which `longest` are looked at.

    What is P is no part. One structure follows the other, and a part that is listed twice has the same number added
    each time: the order of threads changes nothing.
    """
    for k in range(0, count):
        weight = factor * tl.load(p_weights + k)
        tl.debug_barrier()
        if weight != 0:
            for first in range(0, longest, LISTED):
                o_list = first + tl.arange(0, LISTED)
                b_part = tl.load(p_lists + k * L + o_list, mask=o_list < longest, other=P)
                b_weight = tl.zeros((LISTED,), tl.float64) + weight
                tl.atomic_add(p_out + b_part, b_weight, mask=b_part < P, sem="relaxed")
