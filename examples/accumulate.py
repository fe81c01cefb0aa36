"""Trains a tagger on several processes, each in several pieces, with the gradient of one large batch.

    torchrun --nproc-per-node 2 examples/accumulate.py
    python examples/accumulate.py

Both print the same losses. Sentences have different lengths, so the mean over the tags of a large batch is no mean of
means: each piece sums its losses, and the sum is divided once, by the number of tags in all pieces of all processes.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import structmax

WORDS, TAGS, SIZE = 30, 4, 16
# of one step, over all processes; and how many each process takes at once
BATCH, PIECE, STEPS = 23, 3, 10


class Tagger(nn.Module):
    """The loss of a batch, summed over its sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.emissions = nn.Linear(SIZE, TAGS)
        self.crf = structmax.nn.CRF(TAGS, batch_first=True)

    def forward(self, words: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return -self.crf(self.emissions(self.words(words)), tags, mask, reduction="sum")


def sentences(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words, tags and a mask (BATCH, 12), the same on every process."""
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(WORDS, (BATCH, 12), generator=generator)
    lengths = torch.randint(1, 13, (BATCH, 1), generator=generator)
    return words, words % TAGS, torch.arange(12) < lengths


def train(rank: int, processes: int) -> tuple[list[float], nn.Module]:
    """The loss of each step, a mean over all tags of its batch, and the model."""
    torch.manual_seed(0)
    tagger = Tagger()
    model = DistributedDataParallel(tagger) if processes > 1 else tagger
    optimiser = torch.optim.Adam(tagger.parameters(), 0.05)
    losses = []
    for step in range(STEPS):
        mine = [part[rank::processes] for part in sentences(step)]
        pieces = list(zip(*(part.split(PIECE) for part in mine), strict=True))
        # of all pieces of all processes, known before the first backward pass
        tags = mine[2].sum()
        total = torch.zeros(())
        if processes > 1:
            dist.all_reduce(tags)
        for number, piece in enumerate(pieces, 1):
            # DDP sums up locally, and meets the other processes in the last piece only
            alone = processes > 1 and number < len(pieces)
            with model.no_sync() if alone else contextlib.nullcontext():
                loss = model(*piece)
                # DDP divides the sum over processes by their number
                (loss * processes / tags).backward()
            total += loss.detach()
        optimiser.step()
        optimiser.zero_grad()
        if processes > 1:
            dist.all_reduce(total)
        losses.append((total / tags).item())
    return losses, tagger


def main() -> None:
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        dist.init_process_group("gloo")
    losses, tagger = train(rank, processes)
    if rank == 0:
        print(*(f"{loss:.6f}" for loss in losses))
        # a folder given on the command line keeps the weights
        if len(sys.argv) > 1:
            torch.save(tagger.state_dict(), os.path.join(sys.argv[1], f"{processes}.pt"))
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
