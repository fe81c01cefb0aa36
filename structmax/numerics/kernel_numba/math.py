"""exp, log and log1p that LLVM can vectorise in float32: polynomials and bit patterns instead of calls into libm.

float64 goes to libm. "reassoc" must stay out of these functions: it would undo the rounding by a large constant.
"""

import math

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp as vectorised_exp

_ONE = np.float32(1)
_HALF = np.float32(0.5)
# log 2 in two parts: the first has few bits, so that its product with a small integer is exact.
_LOG_2_HIGH = np.float32(0.693359375)
_LOG_2_LOW = np.float32(-2.12194440054690583e-4)
_LOG_LARGEST = np.float32(2.0**126)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_MANTISSA = np.int32(23)
_EXPONENT_OF_ONE = np.int32(127)

# log(1 + f) = f − f²/2 + f³ P(f) on √½ ≤ 1 + f ≤ √2, relative error 6e-9
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    np.float32(c)
    for c in (0.33333331, -0.25000826, 0.20001236, -0.16623142, 0.14201379, -0.13162032, 0.12765367, -0.076342382)
)


@intrinsic
def _bits(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), codegen


@intrinsic
def _from_bits(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


@compiled("contract")
def _log_scaled(k, f):
    """log(2^k (1 + f))"""
    high = _L4 + f * (_L5 + f * (_L6 + f * _L7))
    series = f * f * f * (_L0 + f * (_L1 + f * (_L2 + f * (_L3 + f * high)))) - _HALF * f * f
    exponent = np.float32(k)
    return exponent * _LOG_2_HIGH + (f + (series + exponent * _LOG_2_LOW))


@compiled("contract")
def _log1p_float32(x):
    x = _LOG_LARGEST if x > _LOG_LARGEST else x
    # 1 + x = 2^k (1 + f); f is formed from x itself, so that a small x keeps all its digits.
    k = np.int32(_bits(_ONE + x) - _SQRT_HALF_BITS) >> _MANTISSA
    scale = _from_bits(np.int32(np.int32(_EXPONENT_OF_ONE - k) << _MANTISSA))
    return _log_scaled(k, x * scale + (scale - _ONE))


@compiled("contract")
def _log_float32(x):
    k = np.int32(_bits(x) - _SQRT_HALF_BITS) >> _MANTISSA
    return _log_scaled(k, _from_bits(np.int32(_bits(x) - np.int32(k << _MANTISSA))) - _ONE)


@compiled()
def _exp_float64(x):
    return math.exp(x)


@compiled()
def _log_float64(x):
    return math.log(x)


@compiled()
def _log1p_float64(x):
    return math.log1p(x)


def exp(x):
    """exp x for x ≤ 88; 0 below −87 in float32."""


def log(x):
    """log x for x > 0, in float32 for normal numbers."""


def log1p(x):
    """log(1 + x) for x > −1; in float32 x is cut at 2¹²⁶."""


@overload(exp)
def _exp(x):
    return (lambda x: vectorised_exp(x)) if x == types.float32 else (lambda x: _exp_float64(x))


@overload(log)
def _log(x):
    return (lambda x: _log_float32(x)) if x == types.float32 else (lambda x: _log_float64(x))


@overload(log1p)
def _log1p(x):
    return (lambda x: _log1p_float32(x)) if x == types.float32 else (lambda x: _log1p_float64(x))
