"""Two structures that share variables: a dependency tree and a tag sequence that have to agree.

The tree alone would hang a noun on the root, and the tags alone would have no verb. In a factor graph both are
constrained at once, and the sparse marginals show where the two are torn; their gradient reaches both scorers.
"""

import torch

import structmax

WORDS = ("the", "dogs", "bark", "loudly")
TAGS = ("noun", "verb", "other")


def grammar() -> structmax.FactorGraph:
    """A tree over four words, a chain of tags, and: the word on the root is a verb, and there is one verb at most."""
    arc = structmax.factors.Variables("arc", (5, 5))
    tag = structmax.factors.Variables("tag", (4, 3))
    step = structmax.factors.Variables("step", (3, 3), free=True)
    return structmax.FactorGraph(
        structmax.factors.Factor(structmax.SpanningTree(single_root=True), arc),
        structmax.factors.Factor(structmax.LinearChain(), tag, step),
        *(structmax.factors.Imply(arc[0, m], tag[m - 1, 1]) for m in range(1, 5)),
        structmax.factors.AtMostOne(tag[:, 1]),
    )


def main() -> None:
    torch.manual_seed(0)
    arc = 0.2 * torch.randn(5, 5)
    # "dogs" would like to hang on the root, and to be a noun
    arc[0, 2], arc[0, 3] = 1.0, 0.9
    tag = torch.tensor([[0.2, 0.0, 1.0], [1.0, 0.6, 0.0], [0.4, 0.7, 0.0], [0.0, 0.2, 1.0]], requires_grad=True)
    graph = grammar()
    scores = {"arc": arc, "tag": tag, "step": torch.zeros(3, 3)}

    best = graph.search({name: score.detach() for name, score in scores.items()}, exact=True)
    heads = best.parts["arc"].argmax(0)[1:].tolist()
    labels = best.parts["tag"].argmax(-1).tolist()
    print(f"the best structure, of score {best.value:.3f}:")
    for word, head, label in zip(WORDS, heads, labels, strict=True):
        print(f"  {word:7} {TAGS[label]:6} on {('the root', *WORDS)[head]}")

    out = structmax.sparsemap(scores, graph)
    marginals = {name: tensor.detach() for name, tensor in out.marginals.items()}
    print(f"sparse marginals after {int(out.iterations)} steps, residual {out.primal_residual:.0e}:")
    for m, word in enumerate(WORDS):
        print(f"  {word:7} root {marginals['arc'][0, m + 1]:.3f} ≤ verb {marginals['tag'][m, 1]:.3f}")

    out.marginals["arc"][0, 3].backward()
    print(f"more verb in 'bark', more of it on the root: {tag.grad[2, 1]:+.3f}")


if __name__ == "__main__":
    main()
