"""Pictures. Each function takes arrays or nothing, returns a matplotlib Figure, and touches no global state."""
