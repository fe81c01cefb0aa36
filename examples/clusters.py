"""Regression with latent categories: which gradient estimator finds the clusters nobody told it about?

Points x lie in K clusters, and each cluster has a regression of its own, y = β_z · x + noise. A linear encoder scores
the categories, a bilinear decoder predicts zᵀ V x, and the loss is squared. The categories are never seen: the encoder
learns from whatever gradient the estimator gives it. All seeds of an estimator train at once, as one batch.
"""

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor

import structmax

FEATURES, POINTS, BATCH = 100, 3000, 200
# of y, and of the clusters' centres from the origin, where a cluster is 1 wide along each feature
NOISE, DISTANCE = 0.1, 6.0

ESTIMATORS = {
    "marginalise": structmax.Enumerate(),
    "sparse support": structmax.SparseSupport(),
    "score function": structmax.ScoreFunction(),
    "  self-critical": structmax.ScoreFunction(1, structmax.SelfCritical()),
    "  4 draws, leave one out": structmax.ScoreFunction(4, structmax.LeaveOneOut()),
    "sum and sample": structmax.SumAndSample(1),
    "without replacement": structmax.SampleWithoutReplacement(2),
    "rebar": structmax.Rebar(),
    "straight-through": structmax.StraightThrough(),
    "  by softmax": structmax.StraightThrough(structmax.Marginals()),
    "  Gumbel": structmax.StraightThroughGumbel(),
    "reinmax": structmax.ReinMax(),
    "spigot": structmax.Spigot(),
    "spigot-ce": structmax.SpigotCE(),
    "implicit MLE": structmax.ImplicitMLE(),
    "perturbed": structmax.Perturbed(4, control_variate=True),
    "softmax attention": structmax.Relaxation(),
    "Gumbel-softmax": structmax.GumbelSoftmax(),
}


@dataclass
class Data:
    """Points of all seeds: x (S, N, D), the hidden category (S, N), y (S, N)."""

    x: Tensor
    category: Tensor
    y: Tensor

    @classmethod
    def of(cls, seeds: int, clusters: int, points: int) -> "Data":
        g = torch.Generator().manual_seed(clusters)
        centres = torch.nn.functional.normalize(torch.randn(seeds, clusters, FEATURES, generator=g), dim=-1)
        slopes = torch.randn(seeds, clusters, FEATURES, generator=g) / FEATURES**0.5
        category = torch.randint(clusters, (seeds, points), generator=g)
        own = category.unsqueeze(-1).expand(-1, -1, FEATURES)
        x = DISTANCE * centres.gather(1, own) + torch.randn(seeds, points, FEATURES, generator=g)
        y = (slopes.gather(1, own) * x).sum(-1)
        return cls(x, category, y + NOISE * torch.randn(y.shape, generator=g))

    def at(self, points: Tensor | slice) -> "Data":
        return Data(self.x[:, points], self.category[:, points], self.y[:, points])


class Model(torch.nn.Module):
    def __init__(self, seeds: int, clusters: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(1)
        self.encoder = torch.nn.Parameter(0.01 * torch.randn(seeds, FEATURES, clusters, generator=g))
        self.decoder = torch.nn.Parameter(0.01 * torch.randn(seeds, FEATURES, clusters, generator=g))

    def forward(self, data: Data) -> tuple[Tensor, structmax.estimators.expectation.Objective]:
        """Scores (S, N, K), and the squared error of chosen categories."""
        predicted = (data.x @ self.decoder).flatten(0, 1)
        y = data.y.flatten()

        def error(z: Tensor, index: Tensor) -> Tensor:
            return ((z * predicted[index]).sum(-1) - y[index]) ** 2

        return data.x @ self.encoder, error


@torch.no_grad()
def judged(model: Model, data: Data, clusters: int) -> dict[str, Tensor]:
    """Of each seed: the loss at the best category, how many points are in the right cluster, and the V-measure."""
    scores, error = model(data)
    choice = structmax.argmax(scores, structmax.Simplex())
    loss = error(choice.flatten(0, 1), torch.arange(data.y.numel())).reshape(data.y.shape).mean(-1)
    # (S, K, K): points of each true category in each found one; the best matching gives the names
    counts = torch.nn.functional.one_hot(data.category, clusters).float().mT @ choice
    named = structmax.argmax(counts, structmax.Matching())
    accuracy = (named * counts).sum((-2, -1)) / counts.sum((-2, -1))
    return {"loss": loss, "accuracy": accuracy, "V-measure": v_measure(counts)}


def v_measure(counts: Tensor) -> Tensor:
    """The harmonic mean of homogeneity and completeness of counts (…, true, found)."""
    p = counts / counts.sum((-2, -1), keepdim=True)

    def entropy(q: Tensor) -> Tensor:
        return -torch.xlogy(q, q).flatten(1).sum(-1)

    true, found, both = entropy(p.sum(-1)), entropy(p.sum(-2)), entropy(p)
    shared = (true + found - both).clamp_min(0.0)
    return 2 * shared / (true + found).clamp_min(1e-9)


def train(estimator, data: Data, clusters: int, steps: int) -> tuple[Model, list[float], float]:
    """The model of all seeds, the loss at each step, and the seconds it took."""
    model = Model(len(data.x), clusters)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    g = torch.Generator().manual_seed(0)
    curve, start = [], time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        scores, error = model(data.at(torch.randint(POINTS, (BATCH,), generator=g)))
        value = structmax.expect(error, scores, structmax.Simplex(), estimator, generator=g).value
        # seeds do not share parameters: a sum over them trains each alone
        value.mean(-1).sum().backward()
        optimiser.step()
        curve.append(float(value.detach().mean()))
    return model, curve, time.perf_counter() - start


def main(clusters: tuple[int, ...] = (3, 10), steps: int = 300, seeds: int = 5, plot: str | None = None) -> None:
    curves = {}
    for k in clusters:
        everything = Data.of(seeds, k, POINTS + 1000)
        data, held_out = everything.at(slice(POINTS)), everything.at(slice(POINTS, None))
        print(f"\n{k} clusters, {seeds} seeds; on held-out points")
        print(f"{'':<26}{'loss':>15}{'accuracy':>15}{'V-measure':>15}{'seconds':>10}")
        for name, estimator in ESTIMATORS.items():
            model, curves[k, name], seconds = train(estimator, data, k, steps)
            cells = (f"{v.mean():6.2f} ± {v.std():4.2f}" for v in judged(model, held_out, k).values())
            print(f"{name:<26}{''.join(f'{cell:>15}' for cell in cells)}{seconds:>10.1f}")
    if plot:
        draw(curves, plot)


def draw(curves: dict[tuple[int, str], list[float]], path: str) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    clusters = sorted({k for k, _ in curves})
    figure = Figure(figsize=(6 * len(clusters), 5), layout="constrained")
    for k, axes in zip(clusters, figure.subplots(1, len(clusters), squeeze=False)[0], strict=True):
        axes.set_prop_cycle(color=colormaps["tab20"].colors)
        for name in ESTIMATORS:
            axes.plot(curves[k, name], label=name.strip(), linewidth=1)
        axes.set(title=f"{k} clusters", xlabel="step", ylabel="training loss", yscale="log")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plot", help="a file for learning curves")
    given = parser.parse_args()
    # Tensors are small: more threads would wait for each other.
    torch.set_num_threads(1)
    main(steps=given.steps, seeds=given.seeds, plot=given.plot)
