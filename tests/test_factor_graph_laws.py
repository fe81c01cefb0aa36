"""Laws of factor graphs, for random graphs of every kind of factor."""

import pytest
from fuzz_factor_graph import disagreements
from relaxations import KINDS, LOGIC

# Where many bounds coincide, and a bound is often touched without a force.
OUTPUTS = ("or_out", "and_out", "imply")
TOUCHING = (39, 151, 216)


@pytest.mark.parametrize("kinds", [OUTPUTS, (*LOGIC, "pair"), KINDS], ids=["outputs", "logic", "all"])
def test_random_graphs(kinds):
    """Marginals and Jacobians are those of an independent solver and of its differences."""
    seeds = [*range(40), *(TOUCHING if kinds == OUTPUTS else ())]
    found = [disagreements(seed, kinds, kinds) for seed in seeds]
    assert not [line for wrong, _ in found for line in wrong]
    assert sum(compared for _, compared in found) > 100
