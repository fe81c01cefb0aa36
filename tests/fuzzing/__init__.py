"""Random structures, scores and questions, judged by enumeration. `tests/fuzz.py` runs them."""
