"""Mixtures of few listed structures: what a sparse map returns. It has functions but no public structure."""
