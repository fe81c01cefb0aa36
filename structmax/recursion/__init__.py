"""Every dynamic program, as an ordered hypergraph: its edges, and the answers to every question about them.

A structure whose inference is a dynamic program has a function `recursion(*scores, **fields)` that returns a
`Recursion`: the `Hyperedges` of all instances, and each instance's goal. See docs/extending.md.
"""

from structmax.recursion.edges import Hyperedges, Recursion
from structmax.recursion.semiring import Semiring

__all__ = ["Hyperedges", "Recursion", "Semiring"]
