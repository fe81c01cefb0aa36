"""An LSTM over dependency trees, from the leaves up to the root."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from structmax import check
from structmax.nn.first_order import first_order
from structmax.nn.words_and_arcs import check_arcs, check_words
from structmax.numerics.arcs import decode_arcs

# How many numbers the gradient of arcs holds at once beyond its answer.
BLOCK = 2**22


class ChildSumTreeLSTM(nn.Module):
    """An LSTM over dependency trees: the state of a word sums up its subtree. All trees of a batch at once, by level.

    With C(j) the words whose head is j, and s_j = Σ h_k over k in C(j),

        i, o, u = σ, σ, tanh of W x_j + U s_j + b          f_jk = σ(W_f x_j + U_f h_k + b_f) for each child k
        c_j = i u + Σ f_jk c_k over k in C(j)              h_j = o tanh(c_j)

    A tree has an order in which to compute this, a mixture of trees has none: trees should be discrete, from `argmax`,
    `sample` or a `surrogate`. For marginals and other soft trees use `TreeGCN`; for sparse mixtures, the mean over
    their trees: `structmax.expect(f, scores, structure, structmax.estimators.SparseSupport())`.

    Discrete arcs still get a gradient, those of the tree and all others. Each sum over children is linear in
    the arcs, so ∂L/∂arc[j, k] = ⟨∂L/∂s_j, h_k⟩ + ⟨∂L/∂c_j, f_jk c_k⟩ says what k would bring to j. `Spigot`,
    `StraightThrough` and other surrogates take it on to the scores.

    Args:
        input_size: D, features of a word.
        hidden_size: H, of a state.

    Examples:
        >>> import torch, structmax
        >>> lstm, words = structmax.nn.ChildSumTreeLSTM(4, 3), torch.randn(2, 5, 4)
        >>> scores = torch.randn(2, 6, 6, requires_grad=True)
        >>> structure = structmax.SpanningTree(torch.tensor([5, 3]), single_root=True)
        >>> states = lstm(words, structmax.surrogate(scores, structure, structmax.estimators.Spigot()))
        >>> states.shape
        torch.Size([2, 6, 3])
        >>> states[:, 0].sum().backward()
        >>> scores.grad.shape
        torch.Size([2, 6, 6])

    Reference:
        Tai, Socher and Manning 2015, Improved semantic representations from tree-structured long short-term memory
        networks.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        check.whole("input_size", input_size, 1)
        check.whole("hidden_size", hidden_size, 1)
        self.input_size, self.hidden_size = input_size, hidden_size
        # i, o, u and f, in this order
        self.input = nn.Linear(input_size, 4 * hidden_size)
        self.subtrees = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.forget = nn.Linear(hidden_size, hidden_size, bias=False)
        with torch.no_grad():
            self.input.bias.zero_()
            # The forget gate starts open.
            self.input.bias[3 * hidden_size :] = 1.0

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def forward(self, words: Tensor, tree: Tensor) -> Tensor:
        """The states of all nodes.

        Args:
            words: x, (…, N, D).
            tree: 0/1 arcs (…, N + 1, N + 1), arc[h, m] = 1 where h is the head of m and node 0 is the root; or integer
                heads (…, N), 0 for the root. A word that has no head, or −1, is padding.

        Returns:
            h, (…, N + 1, H), numbered like the arcs: words are 1 … N, with zeros for padding; node 0 is the sum over
            the words that hang on the root, so with a single root the state of the whole tree.
        """
        check_words(words, self.input_size)
        heads, arcs = _discrete(words, tree)
        batch, N = heads.shape[:-1], heads.shape[-1]
        order = Order.of(heads.reshape(batch.numel(), N))
        # Padding may hold anything: only words of trees are looked at.
        gates = self.input(words.reshape(heads.numel(), self.input_size)[order.word])
        between_words = None if arcs is None else arcs[..., 1:, 1:].reshape(batch.numel(), N, N)
        on_root = heads == 0 if arcs is None else arcs[..., 0, 1:]
        with torch.autocast(words.device.type, enabled=False):
            wide = gates.to(self.subtrees.weight.dtype)
            found = ByLevel.apply(order, between_words, wide, self.subtrees.weight, self.forget.weight)
            states = found.new_zeros(heads.numel(), self.hidden_size).index_put((order.word,), found)
            states = states.view(*batch, N, self.hidden_size)
            return torch.cat([on_root.to(states.dtype).unsqueeze(-2) @ states, states], -2)


def _discrete(words: Tensor, tree: Tensor) -> tuple[Tensor, Tensor | None]:
    """Heads, and arcs where trees are given as such."""
    if tree.is_floating_point():
        check_arcs("tree", tree, words)
        if bool(((tree != 0) & (tree != 1)).any() | (tree[..., 1:].sum(-2) > 1).any()):
            raise ValueError(
                "`tree` should be discrete, arcs of 0 and 1 with one head for each word, but is a mixture of trees: "
                "it has no order from the leaves to the root. Try `argmax` or a `surrogate` of the scores, TreeGCN for "
                "soft arcs, or `expect(..., SparseSupport())` for the mean over the trees of a sparse mixture."
            )
        heads = decode_arcs(tree, labelled=False)
        assert isinstance(heads, Tensor)
        return heads, tree
    check.whole_numbers("tree", tree)
    check.same_device("tree", tree, words)
    N = words.shape[-2]
    if tree.shape != words.shape[:-1]:
        raise ValueError(
            f"`tree` should be heads of shape {tuple(words.shape[:-1])}, one for each of `words` {tuple(words.shape)}, "
            f"or floating-point arcs, but has {tuple(tree.shape)}."
        )
    if bool(((tree < -1) | (tree > N)).any()):
        raise ValueError(
            f"`tree` should hold heads between −1, for padding, and N = {N}, "
            f"but they lie between {int(tree.min())} and {int(tree.max())}."
        )
    return tree.long(), None


class Order(NamedTuple):
    """The words of all trees, T in all, by depth: first those that hang on a root, and heads before their words."""

    # (T,) each: which word of the flattened batch; where its head is in this order, of no meaning at the first level
    word: Tensor
    head: Tensor
    # how many words there are at each depth
    sizes: list[int]

    @classmethod
    def of(cls, heads: Tensor) -> "Order":
        """From heads (B, N)."""
        N = heads.shape[1]
        node = nn.functional.pad(heads, (1, 0), value=0)
        depth = (node >= 0).long()
        depth[:, 0] = 0
        above = node.clamp_min(0)
        on_padding = (depth > 0) & (above > 0) & (depth.gather(1, above) == 0)
        # Each step doubles how far a word looks up.
        for _ in range(N.bit_length()):
            depth = depth + depth.gather(1, above)
            above = above.gather(1, above)
        if bool((on_padding | (above > 0)).any()):
            instance = int((on_padding | (above > 0)).any(1).nonzero()[0])
            raise ValueError(
                f"`tree` should lead from each word to the root, but instance {instance} has a cycle or a head that is "
                f"padding: its heads are {heads[instance].tolist()}."
            )
        depth = depth[:, 1:].flatten()
        by_depth = depth.argsort(stable=True)
        padding, *sizes = depth.bincount(minlength=1).tolist()
        word = by_depth[padding:]
        # Word m of a row is at m − 1 in it.
        head = (word // N * N + heads.flatten()[word] - 1).clamp_min(0)
        place = by_depth.argsort() - padding
        return cls(word, place[head], sizes)

    def levels(self) -> list[slice]:
        """Where the words of each depth are, from the root down."""
        ends = itertools.accumulate(self.sizes, initial=0)
        return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


class ByLevel(Function):
    """h (T, H) of all words in their order, from W x + b (T, 4 H).

    Forward, the deepest level first: a level makes h and c, and adds h and f c to the sums s and k of its heads.
    Backward, from the root down, with a = [i, o, u] before σ and tanh, and j the head of each word:

        ∂L/∂s = ∂L/∂a U          ∂L/∂h += ∂L/∂s_j + ∂L/∂f̂ U_f,  f̂ = W_f x_j + U_f h + b_f
        ∂L/∂k = ∂L/∂c            ∂L/∂c += f ∂L/∂c_j             ∂L/∂f̂ = f (1 − f) c ∂L/∂c_j

    Weights get theirs at the end, in one product over all levels.
    """

    @staticmethod
    def forward(ctx: Any, order: Order, arcs: Tensor | None, gates: Tensor, subtrees: Tensor, forget: Tensor) -> Tensor:
        H = forget.shape[0]
        s, k = gates.new_zeros(2, len(gates), H)
        h, c, f = torch.empty_like(s), torch.empty_like(s), torch.empty_like(s)
        gates = gates.clone()
        for depth, level in reversed(list(enumerate(order.levels()))):
            a = gates[level, : 3 * H].addmm_(s[level], subtrees.t())
            a[:, : 2 * H].sigmoid_()
            a[:, 2 * H :].tanh_()
            i, o, u = a.split(H, -1)
            torch.addcmul(k[level], i, u, out=c[level])
            torch.mul(o, c[level].tanh(), out=h[level])
            if depth:
                head = order.head[level]
                torch.sigmoid(gates[head, 3 * H :].addmm_(h[level], forget.t()), out=f[level])
                s.index_add_(0, head, h[level])
                k.index_add_(0, head, f[level] * c[level])
        ctx.order = order
        ctx.save_for_backward(arcs, gates, subtrees, forget, s, h, c, f)
        return h

    @staticmethod
    @first_order
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        order = ctx.order
        arcs, gates, subtrees, forget, s, h, c, f = ctx.saved_tensors
        H = forget.shape[0]
        d_h, d_gates = d_output.clone(), torch.zeros_like(gates)
        d_c, d_s, d_f = torch.zeros_like(h), torch.empty_like(h), torch.zeros_like(h)
        for depth, level in enumerate(order.levels()):
            if depth:
                head = order.head[level]
                above = d_c[head]
                torch.mul(above * c[level], f[level] * (1 - f[level]), out=d_f[level])
                torch.mul(above, f[level], out=d_c[level])
                d_h[level] += d_s[head] + d_f[level] @ forget
                d_gates[:, 3 * H :].index_add_(0, head, d_f[level])
            i, o, u = gates[level, : 3 * H].split(H, -1)
            tanh = c[level].tanh()
            d_c[level] += d_h[level] * o * (1 - tanh * tanh)
            d_i, d_o, d_u = d_gates[level, : 3 * H].split(H, -1)
            torch.mul(d_c[level] * u, i * (1 - i), out=d_i)
            torch.mul(d_h[level] * tanh, o * (1 - o), out=d_o)
            torch.mul(d_c[level] * i, 1 - u * u, out=d_u)
            torch.mm(d_gates[level, : 3 * H], subtrees, out=d_s[level])
        d_arcs = _to_arcs(order, arcs, gates[:, 3 * H :], forget, h, c, d_s, d_c) if ctx.needs_input_grad[1] else None
        return None, d_arcs, d_gates, d_gates[:, : 3 * H].t() @ s, d_f.t() @ h


def _to_arcs(
    order: Order, arcs: Tensor, gates: Tensor, forget: Tensor, h: Tensor, c: Tensor, d_s: Tensor, d_c: Tensor
) -> Tensor:
    """⟨d_s_j, h_k⟩ + ⟨d_c_j, f_jk c_k⟩ for all words j and k of each tree: (B, N, N). Some heads j at a time."""
    B, N, _ = arcs.shape

    def of_words(t: Tensor) -> Tensor:
        return t.new_zeros(B * N, t.shape[-1]).index_copy_(0, order.word, t).view(B, N, t.shape[-1])

    h_k, c_k, f_k = of_words(h), of_words(c), of_words(h @ forget.t())
    d_s_j, d_c_j, f_j = of_words(d_s), of_words(d_c), of_words(gates)
    d_arcs = d_s_j @ h_k.transpose(1, 2)
    some = max(1, BLOCK // max(1, h_k.numel()))
    for first in range(0, N, some):
        j = slice(first, first + some)
        # (B, some of j, k, H)
        brought = (f_j[:, j, None] + f_k.unsqueeze(1)).sigmoid_().mul_(c_k.unsqueeze(1))
        d_arcs[:, j] += (brought @ d_c_j[:, j].unsqueeze(-1)).squeeze(-1)
    return d_arcs.to(arcs.dtype)
