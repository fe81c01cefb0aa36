"""The smallest structure a user could write."""

import dataclasses

import torch

import structmax


@dataclasses.dataclass(frozen=True)
class Coin(structmax.AbstractStructure):
    """Heads or tails, with all functions in the class: what a user writes in one file."""

    event_dim = 1

    def check(self, scores):
        assert scores.shape[-1] == 2

    def enumerate(self, scores):
        return torch.eye(2, dtype=scores.dtype)

    def decode(self, parts):
        return parts.argmax(-1)

    def encode(self, index):
        return torch.nn.functional.one_hot(index, 2).float()

    @staticmethod
    def log_partition(x):
        return torch.logaddexp(x[:, 0], x[:, 1])

    @staticmethod
    def argmax(x):
        return torch.nn.functional.one_hot(x.argmax(-1), 2).to(x.dtype) * (x.amax(-1, keepdim=True) > -torch.inf)
