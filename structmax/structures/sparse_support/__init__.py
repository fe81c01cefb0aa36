"""Mixtures of few listed structures: what a sparse map returns. A room of its own; it holds no structure by name."""
