"""When instances are too few for a GPU, which goes from position to position one step at a time."""

import torch

# Choices at a position, of all instances, below which a core was measured faster, with the copies there and back: 16
# cores were for chains of up to 20 000 choices, and for 64 matchings of 128 rows.
FEW = 1_250


def few_searches(instances: int, choices: int) -> str | None:
    """Why structures with so many choices at a position are better searched on the CPU, or None."""
    few = instances * choices < FEW * torch.get_num_threads()
    return f"{instances} structures are searched faster on the CPU" if few else None


def few_instances(instances: int, of_core: int = 1) -> str | None:
    """Why work that is long for each instance is better done on the CPU, so many to a core at most, or None."""
    few = instances <= of_core * torch.get_num_threads()
    return f"{instances} long instances are computed faster on the CPU" if few else None
