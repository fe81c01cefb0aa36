"""exp as kernels compute it, also inside of code that may sum in any order."""

import numpy as np
import pytest
import torch

from structmax.numerics.kernel_numba import kernel
from structmax.numerics.kernel_numba.exp import exp, positive_exp

X = torch.cat([torch.linspace(-699, 699, 5000, dtype=torch.float64), torch.tensor([0.0, -0.0, 1e-300])])


def over_numbers(function):
    @kernel("contract", "reassoc")
    def apply(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    return apply


@pytest.fixture(scope="module", params=[exp, positive_exp], ids=["exp", "positive_exp"])
def applied(request):
    compiled = over_numbers(request.param)

    def call(x):
        out = np.empty(len(x))
        compiled(x.numpy(), out)
        return torch.from_numpy(out)

    call.positive = request.param is positive_exp
    return call


def test_it_is_right_to_the_last_digits(applied):
    torch.testing.assert_close(applied(X), X.exp(), rtol=1e-15, atol=0)


def test_the_ends(applied):
    x = torch.tensor([-np.inf, -1e300, -710.0, np.nan], dtype=torch.float64)
    least = torch.tensor(-700.0, dtype=torch.float64).exp().item() if applied.positive else 0.0
    torch.testing.assert_close(
        applied(x), torch.tensor([0.0, least, least, np.nan], dtype=torch.float64), rtol=1e-14, atol=0, equal_nan=True
    )


def test_float32():
    x = torch.cat([torch.linspace(-86.9, 88, 5000), torch.tensor([0.0, -0.0, 1e-30, -np.inf, -88.0, np.nan])])
    out = np.empty(len(x), np.float32)
    over_numbers(exp)(x.numpy(), out)
    expected = torch.where(x < -87, 0.0, x.double().exp())
    torch.testing.assert_close(torch.from_numpy(out).double(), expected, rtol=2e-7, atol=0, equal_nan=True)
