"""The factors of a `FactorGraph`, the variables they are over, and what it answers."""

from structmax.factor_graph.factors import AbstractFactor, Dense, Factor, Pair
from structmax.factor_graph.logic import AndOut, AtMostOne, Budget, Imply, Knapsack, Or, OrOut, Xor, XorOut
from structmax.factor_graph.search import Best
from structmax.factor_graph.second_order import second_order_arcs, second_order_spans
from structmax.factor_graph.variables import Literals, Variables

__all__ = [
    "AbstractFactor",
    "AndOut",
    "AtMostOne",
    "Best",
    "Budget",
    "Dense",
    "Factor",
    "Imply",
    "Knapsack",
    "Literals",
    "Or",
    "OrOut",
    "Pair",
    "Variables",
    "Xor",
    "XorOut",
    "second_order_arcs",
    "second_order_spans",
]
