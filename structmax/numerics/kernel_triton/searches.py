"""When searches for a sparse map are too few for a GPU, which goes from position to position one step at a time."""

# Choices at a position, of all instances, below which 16 cores were measured faster, with the copies there and back.
FEW = 20_000


def few_searches(instances: int, choices: int) -> str | None:
    """Why sequences with so many choices at a position are better searched on the CPU, or None."""
    return f"{instances} sequences are searched faster on the CPU" if instances * choices < FEW else None
