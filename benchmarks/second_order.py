"""Times mean field and belief propagation on graphs of second-order parsing: python benchmarks/second_order.py [words].

Contenders take turns in one process; the median is printed, with the peak of the process's memory at the end.
"""

import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch

import structmax

ROUNDS, BATCH = 7, 8


def main(words: int) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    # modules are loaded when first used
    structmax.factors.second_order_arcs(2, tree=structmax.SpanningTree(single_root=True))
    began = time.perf_counter()
    graphs = {
        "one head, siblings": structmax.factors.second_order_arcs(words),
        "one head, siblings, grandparents": structmax.factors.second_order_arcs(words, grandparents=True),
        "several heads, all": structmax.factors.second_order_arcs(
            words, coparents=True, grandparents=True, several_heads=True
        ),
        "spanning tree, siblings": structmax.factors.second_order_arcs(
            words, tree=structmax.SpanningTree(single_root=True)
        ),
    }
    print(f"{words} words, batch {BATCH}, {torch.get_num_threads()} threads")
    print(f"building all graphs: {1e3 * (time.perf_counter() - began):.1f} ms")
    for name, graph in graphs.items():
        every = graph.layout.variables
        scores = {v.name: (0.3 * torch.randn(BATCH, *v.shape)).requires_grad_() for v in every}

        def forward(ask: Callable[..., structmax.Beliefs], **options: float) -> structmax.Beliefs:
            return ask(scores, graph, **options)  # noqa: B023

        def backward(ask: Callable[..., structmax.Beliefs], **options: float) -> None:
            forward(ask, **options).marginals["arc"].square().sum().backward()

        three = {"max_iter": 3, "tol": 0, "parallel": True}
        contenders: dict[str, Callable[[], object]] = {
            "mean field": lambda: forward(structmax.mean_field),
            "with gradient": lambda: backward(structmax.mean_field),
            "3 sweeps": lambda: forward(structmax.mean_field, **three),  # noqa: B023
            "3 sweeps with gradient": lambda: backward(structmax.mean_field, **three),  # noqa: B023
            "belief propagation": lambda: forward(structmax.belief_propagation),
        }
        times: dict[str, list[float]] = {key: [] for key in contenders}
        for round_ in range(ROUNDS + 1):
            for key, run in contenders.items():
                start = time.perf_counter()
                run()
                if round_:
                    times[key].append(time.perf_counter() - start)
        line = "; ".join(f"{key} {1e3 * statistics.median(t):.1f} ms" for key, t in times.items())
        print(f"{name} ({sum(v.size for v in graph.layout.free.values())} scores): {line}")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
