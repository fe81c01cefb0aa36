"""Gradients for discrete choices."""
