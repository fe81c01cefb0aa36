"""Mappings from scores to the simplex, or to a set near it: one family in a file, with its gradient rule."""
