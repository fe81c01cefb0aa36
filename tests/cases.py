"""The one table of structures. A new structure gets every law, and its kernels every comparison, by one row here."""

import torch

import structmax
from structmax.testing import Case


def normal(*shape: int):
    return lambda generator, dtype: torch.randn(*shape, generator=generator, dtype=dtype)


CASES = {
    "simplex": Case(structmax.Simplex(), normal(3, 5)),
    "simplex of one": Case(structmax.Simplex(), normal(2, 1)),
    "simplex in two batch dimensions": Case(structmax.Simplex(), normal(2, 3, 4)),
}
