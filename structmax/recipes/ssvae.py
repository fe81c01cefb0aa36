"""A semi-supervised VAE: how few decoder calls does it take to learn a class from images that have none?

An image x has a class y and a vector h. A few images have labels; for all others the class is a latent category, and
the evidence lower bound sums over it or samples it:

    log p(x) ≥ E_q(y|x)[ E_q(h|x,y)[log p(x|h,y)] − KL(q(h|x,y) ‖ p(h)) + log p(y) ] + H(q(y|x))

The sum over all classes runs the decoder for each of them. Sparse distributions run it for those that are left in
doubt: `calls` counts how often it ran for an image without a label. To compare the estimators:

    structmax compare ssvae --over estimator=dense,sparsemax,score_function --seeds 3 --jobs 2

Reference: Kingma, Rezende, Mohamed & Welling 2014, Semi-supervised learning with deep generative models; Correia,
Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent variables via sparsity.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import structmax
from structmax.recipes.data import images, text
from structmax.recipes.models import latent
from structmax.training import RunError, Task, option

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Config(latent.LatentSettings, images.ImageSettings):
    """A run of one estimator; the defaults take about a minute."""

    least = (
        latent.LatentSettings.least
        | images.ImageSettings.least
        | {"labelled": 1, "warm_start": 0, "classification": 0, "hidden": 1, "size": 1, "weight_decay": 0}
    )
    train_labels: str = option("", "idx file of the labels of the images to train on")
    test_labels: str = option("", "idx file of the labels of the images to test on")
    labelled: int = option(100, "number of training images whose labels are used; the others are unlabelled")
    warm_start: int = option(40, "number of the epochs that are passes over the labelled images alone, at the start")
    classification: float = option(30.0, "weight of the loss of the classes of labelled images, next to their bound")
    hidden: int = option(256, "size of the three layers that score the classes; the other networks' are half of it")
    size: int = option(8, "size of h")
    weight_decay: float = option(1e-5, "weight decay of the optimiser")
    epochs: int = option(150, "passes over the unlabelled images, and in the warm start over the labelled ones")

    def __post_init__(self) -> None:
        super().__post_init__()
        text.together(self, "train_images", "train_labels", "test_images", "test_labels")
        if self.warm_start >= self.epochs:
            raise ValueError(
                f"`warm_start` should be less than `epochs`, {self.epochs}, but is {self.warm_start}: unlabelled "
                "images would not be used. Try more epochs."
            )


class Model(nn.Module):
    """q(y|x), q(h|x,y) and p(x|h,y) of images with so many pixels."""

    def __init__(self, config: Config, pixels: int) -> None:
        super().__init__()
        wide, half, size = config.hidden, max(config.hidden // 2, 1), config.size
        self.scores = nn.Sequential(
            nn.Linear(pixels, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, CLASSES),
        )
        # the first layer of q(h|x,y) in two parts: that of the image is computed once for all classes
        self.read_image = nn.Linear(pixels, half)
        self.read_class = nn.Linear(CLASSES, half, bias=False)
        self.read = nn.Sequential(nn.ReLU(), nn.Linear(half, half), nn.ReLU(), nn.Linear(half, 2 * size))
        self.write = nn.Sequential(
            nn.Linear(size + CLASSES, half), nn.ReLU(), nn.Linear(half, half), nn.ReLU(), nn.Linear(half, pixels)
        )
        self.latent = latent.Latent(config, structmax.Simplex(), CLASSES, pixels)
        # the log-mean of VIMCO is a bound if its weights are those of draws of h, not their means
        self.drawn = config.estimator == "vimco"

    def log_joint(self, x: Tensor, generator: torch.Generator) -> latent.LogJoint:
        """From classes and the images (M,) they are for, an estimate of the bound of log p(x, y): (M,)."""
        seen = self.read_image(x)

        def bound(y: Tensor, index: Tensor) -> Tensor:
            mean, log_scale = self.read(seen[index] + self.read_class(y)).chunk(2, -1)
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
            h = mean + noise * log_scale.exp()
            made = self.write(torch.cat([h, y], -1))
            log_likelihood = -functional.binary_cross_entropy_with_logits(made, x[index], reduction="none").sum(-1)
            square = noise**2 if self.drawn else 1.0
            distance = (h**2 if self.drawn else mean**2 + (2 * log_scale).exp()) - square - 2 * log_scale
            return log_likelihood - distance.sum(-1) / 2 - math.log(CLASSES)

        return bound


class Recipe(Task[Config]):
    model: Model
    shown = ("loss", "calls")
    meanings = {
        "loss": "what training minimises: minus the bounds, and the loss of the classes of labelled images",
        "accuracy": "share of images with the right class",
        "calls": "how often the decoder runs for an unlabelled image in training",
        "bound": "the evidence lower bound of an image's log-likelihood, in nats",
    }
    higher = ("bound",)

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        files = config.train_labels, config.test_labels
        data = {name: split.to(device) for name, split in images.splits(config, files).items()}
        self.train = data.pop("train")
        self.held_out = data
        self.unlabelled = len(self.train) - config.labelled
        if self.unlabelled < 1:
            raise RunError(
                f"`labelled` should leave some of the {len(self.train)} training images without labels, but is "
                f"{config.labelled}."
            )
        for split in (self.train, *data.values()):
            if int(split.labels.max()) >= CLASSES:
                raise RunError(f"Labels should be from 0 to {CLASSES - 1}, but one is {int(split.labels.max())}.")
        self.model = Model(config, self.train.pixels.shape[-1]).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """Of unlabelled images, which stand behind the labelled ones; in the warm start of labelled ones."""
        generator, labelled = self.shuffling(epoch), self.config.labelled
        if epoch < self.config.warm_start:
            return torch.randperm(labelled, generator=generator).split(self.config.batch_size)
        order = labelled + torch.randperm(self.unlabelled, generator=generator)
        return order.split(self.config.batch_size)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        rows = indices.to(self.device)
        if int(indices[0]) < self.config.labelled:
            yield self._labelled(rows, generator), {}
            return
        x = self._drawn(self.train, rows, generator)
        cost, _, calls = self.cost(x, generator)
        known = torch.randint(self.config.labelled, rows.shape, generator=generator, device=self.device)
        ratio = self.unlabelled / self.config.labelled
        loss = self._labelled(known, generator) + ratio * cost.mean()
        yield loss, {"bound": -cost.mean().detach(), "calls": cost.new_full((), calls)}

    def cost(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
        """Of images without labels: minus the bound, the scores of their classes, and the decoder's calls for each."""
        scores = self.model.scores(x)
        cost, calls = self.model.latent(self.model.log_joint(x, generator), scores, x, generator)
        return cost, scores, calls

    def _labelled(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        x, labels = self._drawn(self.train, rows, generator), self.train.labels[rows]
        every = torch.arange(len(rows), device=self.device)
        bound = self.model.log_joint(x, generator)(functional.one_hot(labels, CLASSES).to(x.dtype), every)
        is_sparse = self.config.estimator in latent.SPARSE
        judge = structmax.sparsemax_loss if is_sparse else functional.cross_entropy
        return self.config.classification * judge(self.model.scores(x), labels) - bound.mean()

    def _drawn(self, split: images.Images, rows: Tensor | slice, generator: torch.Generator) -> Tensor:
        """Black and white pixels, each white with the probability of its shade."""
        return torch.bernoulli(split.shades(rows), generator=generator)

    def evaluate(self, split: str) -> dict[str, float]:
        data = self.held_out[split]
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        right, tally = [], latent.Tally()
        for start in range(0, len(data), self.config.batch_size):
            rows = slice(start, start + self.config.batch_size)
            x = self._drawn(data, rows, generator)
            cost, scores, called = self.cost(x, generator)
            right.append(scores.argmax(-1) == data.labels[rows])
            tally.add(cost, called)
        return {
            "accuracy": torch.cat(right).float().mean().item(),
            "bound": -tally.cost,
            "calls": tally.calls,
        }

    def optimiser(self) -> torch.optim.Optimizer:
        config = self.config
        parameters = self.model.parameters()
        return torch.optim.Adam(parameters, config.learning_rate, weight_decay=config.weight_decay, fused=True)

    def drawings(self) -> list[dict[str, Any]]:
        """Images, and what the decoder makes of them with their own class and with every other."""
        data, count = self.held_out["valid"], 8
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        x = self._drawn(data, slice(count), generator)
        every = torch.eye(CLASSES, device=self.device)
        seen = self.model.read_image(x).unsqueeze(1) + self.model.read_class(every)
        mean, _ = self.model.read(seen).chunk(2, -1)
        made = self.model.write(torch.cat([mean, every.expand(len(x), -1, -1)], -1)).sigmoid()
        found = self.model.scores(x).argmax(-1).tolist()
        return [
            {
                "kind": "images",
                "title": "Images, and their reconstructions as each class",
                "images": [[data.drawable(i) for i in (x[row], *made[row])] for row in range(len(x))],
                "rows": [f"{true}, found {own}" for true, own in zip(data.labels[:count].tolist(), found, strict=True)],
                "columns": ["image", *range(CLASSES)],
            }
        ]

    def state(self) -> dict[str, Any]:
        return self.model.latent.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.latent.load_state(state)
