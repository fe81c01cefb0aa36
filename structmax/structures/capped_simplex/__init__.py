"""Probabilities with bounds: {lower ≤ p ≤ upper, Σ p = total}. A polytope of its own; not the hull of 0/1 vectors."""
