"""The recursions of ../README.md on one block of an anti-diagonal: BLOCK places at a time.

All is found in one flat array, in planes of lanes, one lane for each row of a strip:

- `scores`: one plane for the cells, or three for the moves. `directions`: the same of a tangent.
- `now`, `last`, `before`: the anti-diagonal at hand and the two before it. A plane of mantissas, of exponents, of
  tangents; row r is lane r + 1, as lane 0 is the row above.
- `shares`: how probable it is that a path to a place came by a diagonal, vertical or horizontal move. Local alignments
  add how probable it is that a path to a match did not start there, and that the path drawn ends there by a match.
- `slopes`: derivatives of the logarithms of the shares, plane for plane.

The backward steps turn shares into probabilities, and slopes into their derivatives, in place.
"""

from structmax.numerics.kernel_numba.operators import step
from structmax.structures.monotone_alignment.kernel_numba.magnitude import LIMITS, exp, largest, normal, power

DIAGONAL, VERTICAL, HORIZONTAL, CONTINUED, ENDED = range(5)
MANTISSA, EXPONENT, TANGENT = range(3)
# Of the goal of local alignments: what each lane has found of it; then, the same in all lanes, the goal itself.
GOAL_EXPONENT, GOAL_INVERSE, GOAL_TANGENT = range(3, 6)


def _tails(memory, last, before, plane):
    """What stands on the diagonal, above and to the left."""
    return [memory.load(before, plane), memory.load(last, plane), memory.load(last, plane, 1)]


def _sum(mantissas, exponents):
    """The sum of three numbers, mantissa not yet normal, and the share of each."""
    peak = largest(*exponents)
    terms = [m * power(e - peak) for m, e in zip(mantissas, exponents, strict=True)]
    total = terms[0] + terms[1] + terms[2]
    # A sum that is not 0 has a term that is at least ½.
    inverse = total.like(1.0).over(total.at_least(0.5))
    return total, peak, [term * inverse for term in terms]


def _store(memory, number, shares, now, place):
    mantissa, exponent = normal(*number)
    memory.store(mantissa, now, MANTISSA, 1)
    memory.store(exponent, now, EXPONENT, 1)
    for plane, share in enumerate(shares):
        memory.store(share, place, plane)


@step
def forward_cells(memory, scores, now, last, before, shares):
    """w = e^s (w_diagonal + w_above + w_left)"""
    total, peak, parts = _sum(_tails(memory, last, before, MANTISSA), _tails(memory, last, before, EXPONENT))
    weight, shift = exp(memory.load(scores))
    _store(memory, (total * weight, peak + shift), parts, now, shares)


def _moved(memory, scores, mantissas, exponents):
    """The tails times e to the scores of the moves that leave them."""
    factors = [exp(memory.load(scores, plane)) for plane in range(3)]
    mantissas = [m * weight for m, (weight, _) in zip(mantissas, factors, strict=True)]
    return mantissas, [e + shift for e, (_, shift) in zip(exponents, factors, strict=True)]


@step
def forward_moves(memory, scores, now, last, before, shares):
    """w = e^match w_diagonal + e^delete w_above + e^insert w_left"""
    tails = _tails(memory, last, before, MANTISSA), _tails(memory, last, before, EXPONENT)
    total, peak, parts = _sum(*_moved(memory, scores, *tails))
    _store(memory, (total, peak), parts, now, shares)


@step
def forward_local(memory, scores, now, last, before, shares, goal):
    """w = e^match (1 + w_diagonal) + e^delete w_above + e^insert w_left, and Z = 1 + Σ e^match (1 + w_diagonal)"""
    mantissas, exponents = _tails(memory, last, before, MANTISSA), _tails(memory, last, before, EXPONENT)
    zero = exponents[0].like(0.0)
    peak = largest(exponents[0], zero)
    onward = mantissas[0] * power(exponents[0] - peak)
    source = onward + power(zero - peak)
    continued = onward.over(source)
    mantissas, exponents = _moved(memory, scores, [source, *mantissas[1:]], [peak, *exponents[1:]])
    total, peak, parts = _sum(mantissas, exponents)
    exponents[0] = exponents[0].where(mantissas[0].above(0.0), LIMITS[zero.form.width].nothing)
    ended = mantissas[0] * power(exponents[0] - memory.load(goal, GOAL_EXPONENT)) * memory.load(goal, GOAL_INVERSE)
    _store(memory, (total, peak), [*parts, continued, ended], now, shares)
    _add_to_goal(memory, mantissas[0], exponents[0], goal)


def _add_to_goal(memory, mantissa, exponent, goal):
    old = memory.load(goal, EXPONENT)
    peak = largest(old, exponent)
    memory.store(memory.load(goal, MANTISSA) * power(old - peak) + mantissa * power(exponent - peak), goal, MANTISSA)
    memory.store(peak, goal, EXPONENT)


# --- the best path: shares are 0 or 1, the plane of exponents has the scores ----------------------------------------


def _best(scores):
    """The largest, and shares that choose the first that is."""
    best = largest(*scores)
    first = scores[0].reaches(best)
    second = scores[1].reaches(best)
    one = best.like(1.0)
    shares = [one.where(first, 0.0), best.like(0.0).where(first, one.where(second, 0.0))]
    return best, [*shares, one - shares[0] - shares[1]]


def _store_best(memory, best, shares, now, place):
    memory.store(best, now, EXPONENT, 1)
    for plane, share in enumerate(shares):
        memory.store(share, place, plane)


@step
def best_cells(memory, scores, now, last, before, shares):
    """v = s + max(v_diagonal, v_above, v_left)"""
    best, chosen = _best(_tails(memory, last, before, EXPONENT))
    _store_best(memory, best + memory.load(scores), chosen, now, shares)


@step
def best_moves(memory, scores, now, last, before, shares):
    """v = max(match + v_diagonal, delete + v_above, insert + v_left)"""
    tails = _tails(memory, last, before, EXPONENT)
    best, chosen = _best([tail + memory.load(scores, plane) for plane, tail in enumerate(tails)])
    _store_best(memory, best, chosen, now, shares)


@step
def best_local(memory, scores, now, last, before, shares, goal):
    """v = max(match + max(0, v_diagonal), delete + v_above, insert + v_left), and the best of any match."""
    tails = _tails(memory, last, before, EXPONENT)
    one = tails[0].like(1.0)
    continued = one.where(tails[0].above(0.0), 0.0)
    tails[0] = tails[0].at_least(0.0)
    totals = [tail + memory.load(scores, plane) for plane, tail in enumerate(tails)]
    best, chosen = _best(totals)
    ended = one.where(totals[0].reaches(memory.load(goal, GOAL_EXPONENT)), 0.0)
    _store_best(memory, best, [*chosen, continued, ended], now, shares)
    memory.store(memory.load(goal, EXPONENT).at_least(totals[0]), goal, EXPONENT)


# --- tangents ------------------------------------------------------------------------------------------------------


def _mean(shares, values):
    return shares[0] * values[0] + shares[1] * values[1] + shares[2] * values[2]


@step
def tangent_cells(memory, directions, now, last, before, shares, slopes):
    tails = _tails(memory, last, before, TANGENT)
    mean = _mean([memory.load(shares, plane) for plane in range(3)], tails)
    memory.store(mean + memory.load(directions), now, TANGENT, 1)
    for plane, tail in enumerate(tails):
        memory.store(tail - mean, slopes, plane)


def _tangent_moves(memory, directions, tails, now, shares, slopes):
    values = [tail + memory.load(directions, plane) for plane, tail in enumerate(tails)]
    mean = _mean([memory.load(shares, plane) for plane in range(3)], values)
    memory.store(mean, now, TANGENT, 1)
    for plane, value in enumerate(values):
        memory.store(value - mean, slopes, plane)
    return values[DIAGONAL]


@step
def tangent_moves(memory, directions, now, last, before, shares, slopes):
    _tangent_moves(memory, directions, _tails(memory, last, before, TANGENT), now, shares, slopes)


@step
def tangent_local(memory, directions, now, last, before, shares, slopes, goal):
    diagonal, *others = _tails(memory, last, before, TANGENT)
    source = memory.load(shares, CONTINUED) * diagonal
    match = _tangent_moves(memory, directions, [source, *others], now, shares, slopes)
    memory.store(diagonal - source, slopes, CONTINUED)
    memory.store(match - memory.load(goal, GOAL_TANGENT), slopes, ENDED)
    memory.store(memory.load(goal, TANGENT) + memory.load(shares, ENDED) * match, goal, TANGENT)


# --- backward ------------------------------------------------------------------------------------------------------


def _visits(memory, ahead, beyond, diagonal):
    """What flows into a place from the places after it; `diagonal` is the plane of the diagonal moves."""
    return memory.load(beyond, diagonal, 1) + memory.load(ahead, VERTICAL, 1) + memory.load(ahead, HORIZONTAL)


def _backward(memory, shares, ahead, beyond, local):
    """Probability of a place; of its moves, in place of their shares."""
    visit = _visits(memory, ahead, beyond, CONTINUED if local else DIAGONAL)
    visit = visit.where(visit.above(2.0 ** LIMITS[visit.form.width].lowest), 0.0)
    flows = [visit * memory.load(shares, plane) for plane in range(3)]
    if local:
        flows[DIAGONAL] = flows[DIAGONAL] + memory.load(shares, ENDED)
        flows.append(flows[DIAGONAL] * memory.load(shares, CONTINUED))
    return visit, flows


def _replace(memory, flows, place):
    for plane, flow in enumerate(flows):
        memory.store(flow, place, plane)


@step
def backward_moves(memory, shares, ahead, beyond, visits):
    visit, flows = _backward(memory, shares, ahead, beyond, local=False)
    _replace(memory, flows, shares)
    memory.store(visit, visits)


@step
def backward_local(memory, shares, ahead, beyond):
    _replace(memory, _backward(memory, shares, ahead, beyond, local=True)[1], shares)


def _backward_slopes(memory, shares, ahead, beyond, slopes, local):
    """As `_backward`, and the derivatives of all that, in place of the slopes: d(visit · share)."""
    visit, flows = _backward(memory, shares, ahead[0], beyond[0], local)
    change = _visits(memory, ahead[1], beyond[1], CONTINUED if local else DIAGONAL).where(visit.above(0.0), 0.0)
    weights = [memory.load(shares, plane) for plane in range(3)]
    changes = [change * weight + visit * weight * memory.load(slopes, plane) for plane, weight in enumerate(weights)]
    if local:
        ended = memory.load(shares, ENDED) * memory.load(slopes, ENDED)
        changes[DIAGONAL] = changes[DIAGONAL] + ended
        onward = changes[DIAGONAL] * memory.load(shares, CONTINUED) + flows[CONTINUED] * memory.load(slopes, CONTINUED)
        changes.append(onward)
    _replace(memory, flows, shares)
    _replace(memory, changes, slopes)
    return change


@step
def backward_moves_slopes(memory, shares, ahead, beyond, slopes, slopes_ahead, slopes_beyond, visits):
    change = _backward_slopes(memory, shares, (ahead, slopes_ahead), (beyond, slopes_beyond), slopes, local=False)
    memory.store(change, visits)


@step
def backward_local_slopes(memory, shares, ahead, beyond, slopes, slopes_ahead, slopes_beyond):
    _backward_slopes(memory, shares, (ahead, slopes_ahead), (beyond, slopes_beyond), slopes, local=True)
