"""Entmax attention in models of Hugging Face transformers, chosen by name like any other attention.

    register("entmax15")
    model = AutoModel.from_config(config, attn_implementation="entmax15")

Masks, caches, grouped queries and dropout are the model's own. `learn_alpha` gives each head an α that is trained.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from structmax import check
from structmax.mappings.attention import attention_weights, entmax_attention, read

__all__ = ["HeadAlphas", "learn_alpha", "register"]

# What models may pass beside these, and does not change what is computed.
REFUSED = {"softcap": "scores that are capped", "s_aux": "sinks", "position_bias": "a bias of positions"}


def register(name: str = "entmax15", alpha: float = 1.5) -> None:
    """Makes entmax attention known to transformers under a name, for `attn_implementation=name`.

    Args:
        name: what models ask for.
        alpha: a number > 0: 1 for softmax, 2 for sparsemax. A model's own, by `learn_alpha`, goes before it.

    Examples:
        >>> from transformers import AutoModel, BertConfig
        >>> from structmax.integrations.transformers import register
        >>> register("sparsemax", alpha=2.0)
        >>> config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
        >>> model = AutoModel.from_config(config, attn_implementation="sparsemax")
    """
    check.positive("alpha", alpha)
    AttentionInterface.register(name, _attention(alpha))
    # bools, True where a query may read a key; None where all may, or all up to the query's own
    AttentionMaskInterface.register(name, sdpa_mask)


def _attention(default: float) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, heads, N, D) to (batch, N, heads, D), and the weights, if they are known."""
        for keyword, what in REFUSED.items():
            if rest.get(keyword) is not None:
                raise NotImplementedError(
                    f"Entmax attention should be asked without `{keyword}`, but this model has {what}. "
                    'Try attn_implementation="eager".'
                )
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # one query after a cache may read all of it
        causal = bool(causal) and attention_mask is None and query.shape[-2] > 1
        if causal:
            # an empty place of a cache of fixed size lies past the last query
            key, value = key[..., : query.shape[-2], :], value[..., : query.shape[-2], :]
        own = getattr(module, "entmax", None)
        alpha = default if own is None else own()
        if query.is_cuda and not rest.get("output_attentions"):
            # without weights that nobody asked for, no score has to be kept
            asked: Any = {"scale": scaling, "enable_gqa": True, "alpha": alpha}
            out = entmax_attention(query, key, value, attention_mask, dropout, causal, **asked)
            return out.transpose(1, 2).contiguous(), None
        weights = attention_weights(query, key, attention_mask, causal, scaling, True, alpha)
        return read(weights, value, dropout, True).transpose(1, 2).contiguous(), weights

    return attend


class HeadAlphas(nn.Module):
    """α = 1 + sigmoid(a) for each head, a trained: between softmax and sparsemax.

    Args:
        heads: how many.
        start: the first α of all, between 1 and 2.

    Examples:
        >>> from structmax.integrations.transformers import HeadAlphas
        >>> HeadAlphas(3, start=1.2)().detach()
        tensor([1.2000, 1.2000, 1.2000])
    """

    def __init__(self, heads: int, start: float = 1.5) -> None:
        super().__init__()
        if not 1 < start < 2:
            raise ValueError(f"`start` should lie between 1, softmax, and 2, sparsemax, but is {start}.")
        self.raw = nn.Parameter(torch.full((heads,), math.log((start - 1) / (2 - start))))

    def forward(self) -> Tensor:
        return 1 + self.raw.sigmoid()

    def extra_repr(self) -> str:
        return f"heads={len(self.raw)}"


def learn_alpha(model: PreTrainedModel, start: float = 1.5) -> dict[str, HeadAlphas]:
    """Gives every attention of a model an α for each head, trained with its other parameters.

    They are parameters of the model from then on, in its state dict as `….entmax.raw`. Call it before the optimiser is
    made, and before a state dict that has them is loaded.

    Args:
        model: one whose attention is chosen by name.
        start: the first α of all, between 1 and 2.

    Returns:
        The α of each attention, by the name of its module; call one for its values (heads,).

    Examples:
        >>> from transformers import AutoModel, BertConfig
        >>> from structmax.integrations.transformers import learn_alpha, register
        >>> register("entmax15")
        >>> config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
        >>> alphas = learn_alpha(AutoModel.from_config(config, attn_implementation="entmax15"))
        >>> alphas["encoder.layer.0.attention.self"]().detach()
        tensor([1.5000, 1.5000, 1.5000, 1.5000])

    Reference: Correia, Niculae & Martins 2019, https://aclanthology.org/D19-1223.
    """
    found = {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "is_causal") and hasattr(module, "config") and not isinstance(module, PreTrainedModel)
    }
    if not found:
        raise ValueError(
            f"`model` should have attentions that are chosen by name, but {type(model).__name__} has none. "
            "Try a model that takes `attn_implementation`."
        )
    for module in found.values():
        alphas = HeadAlphas(module.config.num_attention_heads, start)
        first = next(module.parameters())
        module.entmax = alphas.to(first.device, torch.promote_types(first.dtype, torch.float32))
    return {name: module.entmax for name, module in found.items()}
