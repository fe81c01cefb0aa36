"""Laws of the projection onto conv(Y)."""

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax.questions.sparse_marginals import sparse_marginals
from structmax.testing.case import Case, same, variants


def nearest(members: Tensor, theta: Tensor) -> Tensor:
    """The point of the convex hull of members (M, d) nearest to theta (d): Wolfe's algorithm, over listed members."""
    points = members - theta
    active = [int((points**2).sum(-1).argmin())]
    weights = theta.new_ones(1)
    while True:
        point = weights @ points[active]
        slack = points @ point
        entering = int(slack.argmin())
        if entering in active or slack[entering] > point @ point - 1e-13 * (1 + (points**2).sum(-1).max()):
            return point + theta
        active.append(entering)
        weights = torch.cat([weights, theta.new_zeros(1)])
        while True:
            gram = points[active] @ points[active].mT
            kkt = torch.nn.functional.pad(gram, (1, 0, 1, 0), value=1.0)
            kkt[0, 0] = 0.0
            right = theta.new_zeros(len(active) + 1)
            right[0] = 1.0
            affine = torch.linalg.lstsq(kkt, right[:, None], driver="gelsd").solution[1:, 0]
            if bool((affine > 1e-12).all()):
                weights = affine
                break
            # as far as the first weight that reaches 0
            falling = affine < weights
            step = torch.where(falling & (affine <= 1e-12), weights / (weights - affine), torch.inf).min().clamp_max(1)
            weights = weights + step * (affine - weights)
            kept = weights > 1e-12
            active = [index for index, keep in zip(active, kept.tolist(), strict=True) if keep]
            weights = weights[kept]


def law_project(case: Case, backend: str) -> None:
    """sparse_marginals is the nearest point of the convex hull of the feasible members; zeros where there is none."""
    for name, scores in variants(case).items():
        got = case.flat(sparse_marginals(case.parts(scores), case.structure, backend=backend))
        every, members, theta = case.scores_of_members(scores), case.members(scores), case.vector(scores)
        feasible = every.flatten(0, -2) > -torch.inf
        rows = zip(members.flatten(0, -3), theta.flatten(0, -2), feasible, strict=True)
        want = [
            # a forbidden part is in no feasible member, so any finite score does
            nearest(y[keep], x.nan_to_num(neginf=0.0)) if bool(keep.any()) else torch.zeros_like(x)
            for y, x, keep in rows
        ]
        same(f"sparse_marginals, {name}", got, torch.stack(want).reshape(got.shape), 1e-9)
        unused = (members.masked_fill((every == -torch.inf).unsqueeze(-1), 0.0) <= 0).all(-2)
        assert not bool(got[unused].any()), f"sparse_marginals, {name}: not exactly 0 where no member has the part"


def law_project_gradients(case: Case, backend: str) -> None:
    """gradcheck with forward mode, and gradgradcheck, of the projection at random scores."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())

    def ask(*tensors: Tensor) -> tuple[Tensor, ...]:
        return case.outputs(sparse_marginals(case.parts(tensors), case.structure, temperature=0.7, backend=backend))

    assert gradcheck(ask, leaves, check_forward_ad=True), "sparse_marginals"
    assert gradgradcheck(ask, leaves, fast_mode=True), "sparse_marginals"
