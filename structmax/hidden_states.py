"""Hidden Markov and semi-Markov models: probabilities in, the distribution of the hidden states out.

    p(x, c) = initial[c_0] · Π transition[c_{n−1}, c_n] · Π p(x_n | c_n)

is exp of a score of the states c, so that log Z = log p(x), and p(c | x) is the `Distribution` of these scores.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from structmax import check
from structmax.distribution import Distribution
from structmax.structures.linear_chain import LinearChain
from structmax.structures.semi_markov import SemiMarkov


def hidden_markov(initial: Tensor, transition: Tensor, emission: Tensor, lengths: Tensor | None = None) -> Distribution:
    """The hidden states of a Markov model, given what was observed.

    All arguments are logarithms, and −inf forbids. The log-likelihood of the observations is the `log_partition` of
    the result, the posterior its `mean` (`mean.unary[n, c]` is p(c_n = c | x), `mean.pairwise` the expected
    transitions), the most probable path its `mode`; draws, entropies and the probability of a path follow. The
    gradient of the log-likelihood by a log-probability is how often it is expected to be used: normalised, these counts
    are the next parameters of expectation maximisation.

    Rows need not sum to 1: they are then weights, and `log_partition` is the logarithm of the total weight.

    Args:
        initial: log p(c_0), (C,) or (…, C).
        transition: log p(c_n = j | c_{n−1} = i) at [i, j]: (C, C), (…, C, C), or (…, N − 1, C, C) if it changes with n.
        emission: log p(x_n | c) of the observations at hand, (…, N, C), from any family: `table[:, x].mT`,
            `Normal(mean, scale).log_prob(x.unsqueeze(-1))`, a network.
        lengths: the number of observations of each instance, at most N; integers that broadcast to the batch.

    Returns:
        A `Distribution` over a `LinearChain`.

    Examples:
        Days are dry or wet, and all that is known is whether there was an umbrella:

        >>> import torch, structmax
        >>> initial = torch.tensor([0.5, 0.5]).log()
        >>> transition = torch.tensor([[0.7, 0.3], [0.3, 0.7]]).log()
        >>> umbrella = torch.tensor([[0.8, 0.2], [0.1, 0.9]]).log()
        >>> seen = torch.tensor([1, 1, 0])
        >>> days = structmax.hidden_markov(initial, transition, umbrella[:, seen].mT)
        >>> days.log_partition.exp()
        tensor(0.1204)
        >>> days.mean.unary[:, 1]
        tensor([0.8619, 0.7992, 0.1907])
        >>> days.structure.decode(days.mode)
        tensor([1, 1, 0])

    Reference:
        Rabiner 1989, A tutorial on hidden Markov models and selected applications in speech recognition.
    """
    _check(initial, transition, emission)
    return Distribution(LinearChain.Parts(emission, transition, initial), LinearChain(lengths))


def hidden_semi_markov(
    initial: Tensor, transition: Tensor, duration: Tensor, emission: Tensor, lengths: Tensor | None = None
) -> Distribution:
    """The hidden segments of a semi-Markov model, in which a state lasts as long as it has been drawn to.

    A state c is entered by `initial` or `transition`, lasts w steps with probability duration[c, w − 1], and emits at
    each of them; then the next is entered. It may be the same one: forbid that by −inf on the diagonal of `transition`.
    The last segment ends with the last observation: `log_partition` is the log-probability of the observations and of
    such an end.

    All arguments are logarithms, and answers are those of `hidden_markov`, with parts of a `SemiMarkov`. The gradient
    of the log-likelihood by `emission` is the posterior of the state at each position, that by `duration` how often
    each duration is expected.

    Args:
        initial: log p of the first state, (C,) or (…, C).
        transition: log p of the next state j after i at [i, j]: (C, C), (…, C, C), or (…, N − 1, C, C), where entry
            n − 1 is for a segment that starts at n.
        duration: log p of lasting 1, …, W steps: (C, W) or (…, C, W).
        emission: log p(x_n | c) of the observations at hand, (…, N, C).
        lengths: the number of observations of each instance, at most N; integers that broadcast to the batch.

    Returns:
        A `Distribution` over a `SemiMarkov`.

    Examples:
        State 0 always lasts one step, state 1 always two:

        >>> import torch, structmax
        >>> initial, transition = torch.tensor([0.5, 0.5]).log(), torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log()
        >>> duration = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()
        >>> emission = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.2, 0.8]]).log()
        >>> p = structmax.hidden_semi_markov(initial, transition, duration, emission)
        >>> p.structure.decode(p.mode)
        tensor([[ 0,  1,  0],
                [ 1,  2,  1],
                [-1, -1, -1]])
        >>> p.log_partition.exp()
        tensor(0.1732)

    Reference:
        Yu 2010, Hidden semi-Markov models.
    """
    _check(initial, transition, emission)
    *batch, _, C = emission.shape
    W = duration.shape[-1] if isinstance(duration, Tensor) and duration.dim() > 1 else 1
    _fits("duration", duration, emission, (C, W), (*batch, C, W))
    if W == 0:
        raise ValueError(f"`duration` should have at least one width, but has shape {tuple(duration.shape)}.")
    # (…, N, W, C): sums of the next 1, …, W emissions, each by itself: differences of sums from the start would be
    # NaN behind a −inf. Past the end they are of no segment.
    following = pad(emission, (0, 0, 0, W - 1)).unfold(-2, W, 1).cumsum(-1, dtype=emission.dtype).mT
    segment = following + duration.mT.unsqueeze(-3)
    first = segment[..., :1, :, :] + initial[..., None, None, :]
    segment = torch.cat([first, segment[..., 1:, :, :]], -3)
    return Distribution(SemiMarkov.Parts(segment, transition), SemiMarkov(lengths))


def _check(initial: Tensor, transition: Tensor, emission: Tensor) -> None:
    check.floating("emission", emission)
    if emission.dim() < 2 or 0 in emission.shape[-2:]:
        raise ValueError(
            "`emission` should have shape (…, N, C) with N, C ≥ 1, for position and state, but has "
            f"{tuple(emission.shape)}. With a table of symbols it is `table[:, observed].mT`."
        )
    *batch, N, C = emission.shape
    _fits("initial", initial, emission, (C,), (*batch, C))
    _fits("transition", transition, emission, (C, C), (*batch, C, C), (*batch, N - 1, C, C))


def _fits(name: str, tensor: Tensor, emission: Tensor, *shapes: tuple[int, ...]) -> None:
    check.floating(name, tensor)
    if tuple(tensor.shape) not in shapes:
        wanted = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(
            f"`{name}` should have shape {wanted} to match `emission` {tuple(emission.shape)}, "
            f"but has {tuple(tensor.shape)}."
        )
    check.same_kind(name, tensor, "emission", emission)
