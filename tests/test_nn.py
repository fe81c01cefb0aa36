"""Modules: each equals its function, prints its settings, and travels."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mapping_cases import close, normal
from torch import Tensor, nn

import structmax
from structmax import nn as snn
from structmax.nn.losses import Loss
from structmax.nn.mappings import Mapping

ORDERED = torch.tensor([0.4, 0.2, 0.1, 0.0])

# module, its function, settings
MAPPINGS = [
    (snn.Softmax, structmax.softmax, {}),
    (snn.Sparsemax, structmax.sparsemax, {}),
    (snn.Entmax15, structmax.entmax15, {}),
    (snn.Entmax, structmax.entmax, {"alpha": 1.3}),
    (snn.Entmax, structmax.entmax, {"alpha": torch.tensor([1.2, 1.8, 2.0])}),
    (snn.TopKSparsemax, structmax.topk_sparsemax, {"k": 2}),
    (snn.Normmax, structmax.normmax, {"alpha": 3.0}),
    (snn.Budget, structmax.budget, {"budget": 1.5}),
    (snn.Csparsemax, structmax.csparsemax, {"lower": 0.1, "upper": 0.6}),
    (snn.Csoftmax, structmax.csoftmax, {"upper": torch.tensor([0.5, 0.4, 0.3, 1.0])}),
    (snn.Fusedmax, structmax.fusedmax, {"lam": 0.2}),
    (snn.Oscarmax, structmax.oscarmax, {"lam": 0.1}),
    (snn.ProxTV, structmax.prox_tv, {"lam": 0.2}),
    (snn.ProxOWL, structmax.prox_owl, {"weights": ORDERED}),
    (snn.SmoothedMax, structmax.smoothed_max, {"alpha": 1.5}),
]
SAMPLERS = [
    (snn.GumbelSoftmax, structmax.gumbel_softmax, {"temperature": 0.5}),
    (snn.GumbelSparsemax, structmax.gumbel_sparsemax, {"hard": True}),
    (snn.GumbelEntmax, structmax.gumbel_entmax, {"alpha": 1.7, "temperature": 2.0}),
]
LOSSES = [
    (snn.SparsemaxLoss, structmax.sparsemax_loss, {}),
    (snn.Entmax15Loss, structmax.entmax15_loss, {"reduction": "sum"}),
    (snn.EntmaxLoss, structmax.entmax_loss, {"alpha": 1.3, "label_smoothing": 0.1}),
    (snn.NormmaxLoss, structmax.normmax_loss, {"alpha": 2.5, "ignore_index": 1, "reduction": "none"}),
]


def named(rows: list) -> Any:
    return pytest.mark.parametrize(
        ("module", "function", "settings"),
        [pytest.param(*row, id=f"{row[0].__name__}-{i}") for i, row in enumerate(rows)],
    )


def travelled(module: nn.Module) -> list[nn.Module]:
    return [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]


Function = Callable[..., Tensor]


@named(MAPPINGS)
def test_mapping_equals_its_function(module: type[nn.Module], function: Function, settings: dict) -> None:
    x = normal(2, 3, 2, 4, dtype=torch.float32)
    mask = torch.tensor([True, True, True, False])
    layer = module(**settings)
    for same in (layer, *travelled(layer)):
        assert torch.equal(same(x), function(x, **settings))
    if module is not snn.ProxOWL:
        short = torch.tensor([[[2, 4]]])
        if "upper" not in settings:
            assert torch.equal(layer(x, lengths=short), function(x, **settings, lengths=short))
        assert torch.equal(layer(x, mask=mask), function(x, **settings, mask=mask))


@named(SAMPLERS)
def test_sampler_equals_its_function(module: type[nn.Module], function: Function, settings: dict) -> None:
    x = normal(5, 4)
    layer = module(**settings)
    for same in (layer, *travelled(layer)):
        torch.manual_seed(0)
        ours = same(x)
        torch.manual_seed(0)
        assert torch.equal(ours, function(x, **settings))


@named(LOSSES)
def test_loss_equals_its_function(module: type[nn.Module], function: Function, settings: dict) -> None:
    x, target = normal(5, 4), torch.tensor([0, 1, 2, 3, 0])
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    layer = module(weight=weight, **settings)
    for same in (layer, *travelled(layer)):
        assert torch.equal(same(x, target), function(x, target, weight=weight, **settings))
    assert list(layer.state_dict()) == ["weight"]
    assert layer.float().weight.dtype == torch.float32
    along_columns = module(dim=0, **settings)(x.t(), target)
    assert torch.equal(along_columns, module(**settings)(x, target))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (snn.Sparsemax(dim=1), "Sparsemax(dim=1)"),
        (snn.Entmax(1.3), "Entmax(alpha=1.3, dim=-1)"),
        (snn.Entmax(torch.ones(8)), "Entmax(alpha=(8,), dim=-1)"),
        (snn.TopKSparsemax(5), "TopKSparsemax(k=5, dim=-1)"),
        (snn.Fusedmax(0.2), "Fusedmax(lam=0.2, dim=-1)"),
        (snn.ProxOWL(ORDERED), "ProxOWL(weights=(4,), dim=-1)"),
        (snn.GumbelSoftmax(0.5, hard=True), "GumbelSoftmax(temperature=0.5, hard=True, dim=-1)"),
        (
            snn.EntmaxLoss(1.3, reduction="sum"),
            "EntmaxLoss(alpha=1.3, dim=-1, ignore_index=-100, reduction='sum', label_smoothing=0.0)",
        ),
    ],
)
def test_repr(module: nn.Module, text: str) -> None:
    assert repr(module) == text


def test_parameters_and_buffers() -> None:
    trained = snn.Entmax(alpha=nn.Parameter(torch.full((3,), 1.5)))
    assert [name for name, _ in trained.named_parameters()] == ["alpha"]
    fixed = snn.Entmax(alpha=torch.full((3,), 1.5))
    assert not list(fixed.parameters())
    assert list(fixed.state_dict()) == ["alpha"]
    assert not snn.Entmax(alpha=1.5).state_dict()
    assert fixed.double().alpha.dtype == torch.float64
    assert fixed.to("meta").alpha.device.type == "meta"
    other = snn.Entmax(alpha=nn.Parameter(torch.ones(3)))
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other.alpha, trained.alpha)


def test_an_alpha_for_each_head_is_learnt() -> None:
    x = normal(2, 2, 2, 6, dtype=torch.float32)
    wanted = structmax.entmax(x, torch.tensor([1.1, 2.0]))
    layer = snn.Entmax(alpha=nn.Parameter(torch.full((2,), 1.5)))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(80):
        optimiser.zero_grad()
        loss = ((layer(x) - wanted) ** 2).sum()
        loss.backward()
        optimiser.step()
    close(layer.alpha, [1.1, 2.0], 0.05)


def test_a_budget_is_learnt() -> None:
    layer = snn.Budget(budget=nn.Parameter(torch.tensor(1.0)))
    layer(normal(3, 5, dtype=torch.float32)).pow(2).sum().backward()
    assert layer.budget.grad is not None
    assert layer.budget.grad.isfinite()
    assert layer.budget.grad > 0


def test_half_precision_scores_meet_full_precision_parameters() -> None:
    layer = snn.Entmax(alpha=nn.Parameter(torch.full((3,), 1.5)))
    p = layer(normal(2, 3, 4, 5, dtype=torch.bfloat16))
    assert p.dtype == torch.bfloat16
    p[..., 0].sum().backward()
    assert layer.alpha.grad.dtype == torch.float32
    assert layer.alpha.grad.isfinite().all()


def test_every_module_is_public_and_in_this_file() -> None:
    tested = {row[0].__name__ for row in (*MAPPINGS, *SAMPLERS, *LOSSES)}
    assert tested == {name for name in snn.__all__ if issubclass(getattr(snn, name), (Mapping, Loss))}
