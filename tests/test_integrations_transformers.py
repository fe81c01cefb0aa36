"""Entmax attention in small models of transformers with random weights: against a plain computation, with gradients."""

import pytest
import torch

import structmax
from structmax.testing import same

transformers = pytest.importorskip("transformers")
ours = pytest.importorskip("structmax.integrations.transformers")

SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="module", autouse=True)
def registered():
    for name, alpha in (("entmax10", 1.0), ("entmax15", 1.5), ("entmax20", 2.0)):
        ours.register(name, alpha)


def bert(attention):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertModel._from_config(config, attn_implementation=attention).double().eval()


def llama(attention, **options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=64, **options)
    return transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention).double().eval()


def sentences(padding):
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    there = torch.ones(2, 9, dtype=torch.long)
    there[1, padding] = 0
    return ids, there


def entmax_in_place_of_softmax(monkeypatch, alpha):
    """The model's own eager attention, whose softmax is replaced, and nothing else."""

    def weights(scores, dim, dtype=None):
        # their masks are the lowest number there is
        allowed = scores > torch.finfo(scores.dtype).min / 2
        return structmax.entmax(scores, alpha, dim, mask=allowed, backend="reference")

    monkeypatch.setattr(torch.nn.functional, "softmax", weights)


@pytest.mark.parametrize(("name", "alpha"), [("entmax15", 1.5), ("entmax20", 2.0)])
@pytest.mark.parametrize("make", [bert, llama])
def test_equals_the_models_own_attention_with_another_mapping(make, name, alpha, monkeypatch):
    ids, there = sentences(slice(6, None) if make is bert else slice(None, 3))
    model = make(name)
    got = model(ids, attention_mask=there, output_attentions=True)
    grads = torch.autograd.grad(got[0][there.bool()].square().sum(), [*model.parameters()], allow_unused=True)
    entmax_in_place_of_softmax(monkeypatch, alpha)
    model.set_attn_implementation("eager")
    want = model(ids, attention_mask=there, output_attentions=True)
    wanted = torch.autograd.grad(want[0][there.bool()].square().sum(), [*model.parameters()], allow_unused=True)
    same("output", got[0][there.bool()], want[0][there.bool()], 1e-10)
    for a, b in zip(got.attentions, want.attentions, strict=True):
        real = there.bool()[:, None, :, None].expand_as(a)
        same("weights", a[real], b[real], 1e-10)
    for a, b in zip(grads, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            same("gradient", a, b, 1e-8)


@pytest.mark.parametrize("make", [bert, llama])
def test_padding_has_weight_exactly_0(make):
    padding = slice(6, None) if make is bert else slice(None, 3)
    ids, there = sentences(padding)
    model = make("entmax15")
    found = model(ids, attention_mask=there, output_attentions=True)
    for weights in found.attentions:
        assert (weights[1, :, :, padding][:, there[1].bool()] == 0).all()
    ids[1, padding] = 7
    again = model(ids, attention_mask=there)
    same("output", again[0][there.bool()], found[0][there.bool()], 0.0)


def test_softmax_is_softmax_also_without_a_mask():
    ids, _ = sentences(slice(0, 0))
    model = llama("entmax10")
    got = model(ids).logits
    model.set_attn_implementation("sdpa")
    same("logits", got, model(ids).logits, 1e-10)


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_cache_changes_nothing(cache):
    ids, there = sentences(slice(None, 3))
    model = llama("entmax15")
    how = {"attention_mask": there, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with_cache = model.generate(ids, **how, **({"cache_implementation": cache} if cache else {}))
    assert torch.equal(with_cache, model.generate(ids, **how, use_cache=False))


def test_dropout_in_training_alone():
    ids, there = sentences(slice(6, None))
    model = bert("entmax15")
    for layer in model.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    calm = model(ids, attention_mask=there)[0]
    same("output", model(ids, attention_mask=there)[0], calm, 0.0)
    torch.manual_seed(0)
    assert (model.train()(ids, attention_mask=there)[0] - calm).abs().max() > 1e-3


def test_alpha_is_learnt_head_by_head():
    ids, there = sentences(slice(6, None))
    model = bert("entmax15")
    before = model(ids, attention_mask=there)[0]
    alphas = ours.learn_alpha(model)
    assert list(alphas) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]
    same("output", model(ids, attention_mask=there)[0], before, 1e-6)
    optimiser = torch.optim.SGD([own.raw for own in alphas.values()], 1e4)
    model(ids, attention_mask=there)[0].square().sum().backward()
    optimiser.step()
    for own in alphas.values():
        assert own().shape == (4,)
        assert len(set(own().tolist())) == 4
        assert ((own() > 1) & (own() < 2)).all()
    assert "encoder.layer.0.attention.self.entmax.raw" in model.state_dict()
    assert repr(next(iter(alphas.values()))) == "HeadAlphas(heads=4)"


def test_errors():
    with pytest.raises(ValueError, match="`alpha` should be"):
        ours.register("none", 0.0)
    with pytest.raises(ValueError, match="`start` should lie between 1, softmax, and 2, sparsemax, but is 2"):
        ours.HeadAlphas(2, 2)
    attend = transformers.AttentionInterface()["entmax15"]
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(NotImplementedError, match="without `softcap`, but this model has scores that are capped"):
        attend(torch.nn.Identity(), q, q, q, None, softcap=30.0)
    gpt = torch.nn.Module()
    gpt.named_modules = lambda: iter(())
    with pytest.raises(ValueError, match="should have attentions that are chosen by name, but Module has none"):
        ours.learn_alpha(gpt)
