"""exp in float64 that LLVM can vectorise: a polynomial and a bit pattern instead of a call into libm.

"reassoc" must stay out of this file: it would undo the rounding by a large constant.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled

_LOG2_E = 1.4426950408889634
# log 2 in two parts: the first has few bits, so that its product with a small integer is exact.
_LOG_2_HIGH = 0.693147180369123816490
_LOG_2_LOW = 1.90821492927058770002e-10
# Adding 1.5 · 2⁵² leaves the nearest integer in the low bits of the pattern.
_ROUND = 6755399441055744.0
_ROUND_BITS = np.int64(0x4338000000000000)
# Below this exp is as good as 0; it keeps 2^k a normal number.
_LOWEST = -708.0
_MANTISSA = np.int64(52)
_EXPONENT_OF_ONE = np.int64(1023)
# 1/n!: the terms from f² to f¹³ of |f| ≤ log(2)/2, the rest is below 2⁻⁵⁸
_C2, _C3, _C4, _C5, _C6, _C7 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040
_C8, _C9, _C10, _C11, _C12, _C13 = 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800, 1 / 479001600, 1 / 6227020800


@intrinsic
def _bits(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.int64))

    return types.int64(types.float64), codegen


@intrinsic
def _from_bits(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.int64), codegen


@compiled("contract")
def exp(x):
    """exp x for float64 x ≤ 709, −inf too; 0 below −708."""
    shifted = x * _LOG2_E + _ROUND
    k = shifted - _ROUND
    f = (x - k * _LOG_2_HIGH) - k * _LOG_2_LOW
    ff = f * f
    # Pairs of terms, so that fewer multiplications wait for one another.
    low = (_C2 + f * _C3) + ff * ((_C4 + f * _C5) + ff * (_C6 + f * _C7))
    high = (_C8 + f * _C9) + ff * ((_C10 + f * _C11) + ff * (_C12 + f * _C13))
    sixth = ff * ff * ff
    series = 1.0 + (f + ff * (low + sixth * high))
    power = series * _from_bits((_bits(shifted) - _ROUND_BITS + _EXPONENT_OF_ONE) << _MANTISSA)
    return 0.0 if x < _LOWEST else power
