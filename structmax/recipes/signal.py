"""A signalling game: which estimators let two agents agree on what their symbols mean?

A sender sees an image and says one symbol. A receiver hears it, sees the image among others, and has to find it:

    maximise  E_q(y|x)[log p(x | y, images)] + entropy · H(q(y|x))          y one of many symbols

A sum over all symbols asks the receiver about each of them. Sparse distributions ask it about those that the sender
still considers: `calls` counts how often it was asked in a game. To compare the estimators:

    structmax compare signal --over estimator=dense,sparsemax,score_function,gumbel --seeds 3 --jobs 2

Reference: Lazaridou, Peysakhovich & Baroni 2017, Multi-agent cooperation and the emergence of (natural) language;
Correia, Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent variables via
sparsity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data import images
from structmax.recipes.models import latent
from structmax.training import RunError, Task, option

# of an evaluation
GAMES = {"valid": 1024, "test": 10_000}


@dataclass(frozen=True, kw_only=True)
class Config(latent.LatentSettings, images.ImageSettings):
    """A run of one estimator; the defaults take about a minute."""

    least = (
        latent.LatentSettings.least
        | images.ImageSettings.least
        | {"symbols": 2, "game_size": 2, "hidden": 1, "embedding": 1, "entropy": 0}
    )
    symbols: int = option(256, "number of symbols, of which a message is one")
    game_size: int = option(16, "number of images that the receiver sees; one is the right one")
    hidden: int = option(128, "size of the layers between")
    embedding: int = option(64, "size of the vectors by which the receiver compares a symbol with images")
    entropy: float = option(0.1, "weight of the entropy of the messages")
    epochs: int = option(60, "passes over the training images, each the right one of a game")


class Model(nn.Module):
    """Scores of the symbols for an image, and the receiver's vectors of symbols and images."""

    def __init__(self, config: Config, pixels: int) -> None:
        super().__init__()
        hidden, embedding = config.hidden, config.embedding
        self.scores = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, config.symbols))
        self.see = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, embedding))
        self.hear = nn.Linear(config.symbols, embedding, bias=False)
        self.latent = latent.Latent(config, structmax.Simplex(), config.symbols, pixels)

    def log_probs(self, seen: Tensor, y: Tensor, index: Tensor) -> Tensor:
        """What the receiver makes of messages (M, symbols) in games (M,): log-probabilities of the images, (M, size).

        Args:
            seen: vectors of the images of all games, (B, size, embedding).
            y: messages.
            index: of the game that each belongs to.
        """
        # Messages are gathered by their games: vectors of images would be copied for each message otherwise.
        places, most = latent.by_instance(index, len(seen))
        heard = seen.new_zeros(len(seen), most, seen.shape[-1]).index_put(places, self.hear(y).to(seen.dtype))
        return (heard @ seen.mT)[places].log_softmax(-1)


class Recipe(Task[Config]):
    model: Model
    best = "success"
    shown = ("loss", "calls")
    meanings = {
        "loss": "what training minimises: minus the log-probability of the right image, as the estimator computes it",
        "calls": "how often the receiver is asked in a game, in training",
        "success": "games in which the receiver finds the image by the sender's best symbol",
        "symbols": "how many different symbols were best for some image",
    }

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        data = {name: split.to(device) for name, split in images.splits(config).items()}
        fewest = min(map(len, data.values()))
        if fewest < 2:
            raise RunError(f"A game needs several images, but one of the parts of the data has {fewest}.")
        self.train = data.pop("train")
        self.held_out = data
        self.model = Model(config, self.train.pixels.shape[-1]).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return torch.randperm(len(self.train), generator=self.shuffling(epoch)).split(self.config.batch_size)

    def games(self, data: images.Images, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Images (B, size, P): those of the rows in front, and others at random."""
        others = (len(rows), self.config.game_size - 1)
        steps = torch.randint(1, len(data), others, generator=generator, device=self.device)
        chosen = torch.cat([rows.unsqueeze(-1), (rows.unsqueeze(-1) + steps) % len(data)], -1)
        return data.shades(chosen)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        games = self.games(self.train, indices.to(self.device), generator)
        cost, calls = self.cost(games, generator)
        yield cost.mean(), {"calls": cost.new_full((), calls)}

    def cost(self, games: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """What is minimised in each game, and how often the receiver is asked in it."""
        target, seen = games[:, 0], self.model.see(games)

        def log_prob(y: Tensor, index: Tensor) -> Tensor:
            return self.model.log_probs(seen, y, index)[:, 0]

        return self.model.latent(log_prob, self.model.scores(target), target, generator, self.config.entropy)

    def best_symbols(self, target: Tensor) -> Tensor:
        return structmax.argmax(self.model.scores(target), structmax.Simplex())

    def evaluate(self, split: str) -> dict[str, float]:
        data = self.held_out[split]
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        won, tally = [], latent.Tally()
        for rows in (torch.arange(GAMES[split], device=self.device) % len(data)).split(self.config.batch_size):
            games = self.games(data, rows, generator)
            tally.add(*self.cost(games, generator))
            every = torch.arange(len(rows), device=self.device)
            found = self.model.log_probs(self.model.see(games), self.best_symbols(games[:, 0]), every)
            # of equal ones none is found
            won.append((found[:, :1] > found[:, 1:]).all(-1))
        return {
            "success": torch.cat(won).float().mean().item(),
            "loss": tally.cost,
            "calls": tally.calls,
            "symbols": float(self.best_symbols(data.shades()).any(0).sum()),
        }

    def drawings(self) -> list[dict[str, Any]]:
        """The symbols that stand for most images, with some of these."""
        data = self.held_out["valid"]
        best = self.best_symbols(data.shades())
        counts, symbols = best.sum(0).topk(min(8, self.config.symbols))
        used = [(int(symbol), int(count)) for count, symbol in zip(counts, symbols, strict=True) if count > 0]
        return [
            {
                "kind": "images",
                "title": "Images with the same best symbol",
                "images": [
                    [data.drawable(shades) for shades in data.shades(best[:, symbol] > 0)[:10]] for symbol, _ in used
                ],
                "rows": [f"symbol {symbol}, of {count}" for symbol, count in used],
            }
        ]

    def state(self) -> dict[str, Any]:
        return self.model.latent.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.latent.load_state(state)
