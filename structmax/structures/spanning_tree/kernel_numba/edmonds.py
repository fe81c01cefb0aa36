"""The best tree: Chu-Liu/Edmonds on a dense table, O(N²). Derivation: ../README.md.

A table holds the score of every arc as column[m, h], a row for each dependent m, so that the heads of a word lie side
by side; −inf where an arc cannot be, on the diagonal too. Row 0 is not used.
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.labels import best_label

# A word or supernode is not met yet, on the path that grows, or hangs on the root through others like it.
NEW, ON_PATH, FINISHED = 0, 1, 2
NOBODY = -1
# Rows of the table of sums: for each word the worth of all arcs that an arc to it would replace, and the score of the
# root's arc to it; for each name the worth of its best arc and, when summed up, of all inside, of all others inside
# the outermost around it, and a scratch row.
REPLACED, ROOT, WORTH, INSIDE, KEPT, AFTER = range(6)


# --- reading and writing -------------------------------------------------------------------------------------------


@compiled()
def read_columns(arc, n, labels, column):
    """column[m, h] = the best label of arc[h, m · labels :]; whether all usable scores are numbers below inf."""
    sound = True
    for h in range(n + 1):
        for m in range(1, n + 1):
            best = arc[h, m * labels]
            usable = best < np.inf
            for part in range(m * labels + 1, (m + 1) * labels):
                usable &= arc[h, part] < np.inf
                best = max(best, arc[h, part])
            column[m, h] = best
            sound &= usable | (m == h)
        column[h, h] = -np.inf
    return sound


@compiled()
def copy(table, out, rows, columns):
    for i in range(rows):
        for j in range(columns):
            out[i, j] = table[i, j]


@compiled()
def fill_usable(out, n, labels, value):
    """Writes `value` to every arc into a word from another node."""
    for h in range(n + 1):
        out[h, labels : h * labels] = value
        out[h, (h + 1) * labels : (n + 1) * labels] = value


# --- the algorithm -------------------------------------------------------------------------------------------------


@compiled()
def new_search(size):
    """What a search among up to `size` nodes keeps."""
    return (
        # For each place, of a word or supernode: its state, its name, its next member, and the worth of its best arc.
        (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)),
        # The place of each word, and sums of worths.
        (np.empty(size, np.int64), np.empty((6, 2 * size))),
        # For each name ever given: the supernode it became part of, and both ends of its best arc.
        (np.empty(2 * size, np.int64), np.empty(2 * size, np.int64), np.empty(2 * size, np.int64)),
        # Of each arc into a supernode, the word at which it ends.
        np.empty((size, size), np.int64),
        # The places on the path; then the place to look at next, the word its path began at, its height, and the names.
        np.empty(size, np.int64),
        np.empty(4, np.int64),
    )


@compiled("nnan", "nsz")
def _peak(row, start):
    best = -np.inf
    for h in range(start, row.size):
        best = max(best, row[h])
    return best


@compiled()
def _best_head(row, single_root):
    """The first best head and its score. A root that may have one word only is the last resort."""
    start = 1 if single_root else 0
    best = _peak(row, start)
    if best == -np.inf:
        return 0, row[0]
    while row[start] != best:
        start += 1
    return start, best


@compiled()
def _take_over(row, end, shift, out, out_end):
    """out = max(out, row − shift), with the ends of the better arcs."""
    for h in range(out.size):
        score = row[h] - shift
        better = score > out[h]
        out[h] = score if better else out[h]
        out_end[h] = end[h] if better else out_end[h]


@compiled()
def _take_over_word(row, word, shift, out, out_end):
    for h in range(out.size):
        score = row[h] - shift
        better = score > out[h]
        out[h] = score if better else out[h]
        out_end[h] = word if better else out_end[h]


@compiled()
def begin(column, n, single_root, search):
    (state, name, following, _), (place, sums), (parent, _, _), _, _, now = search
    for v in range(n + 1):
        state[v], name[v], following[v], place[v], sums[REPLACED, v] = NEW, v, v, v, 0.0
        if single_root:
            parent[v], sums[ROOT, v] = NOBODY, column[v, 0]
    state[0] = FINISHED
    now[0], now[1], now[2], now[3] = 0, 0, 0, n + 1


@compiled()
def advance(column, n, single_root, search):
    """Finds the best arc into one more word or supernode and returns its place: 0 when all have one, −1 if it has none.

    A path grows from a word to its best head, to the best head of that, and so on. Where it meets itself, the cycle
    becomes a supernode: each arc into it is worth what it adds to the arc that it would replace.
    """
    (state, name, _, worth), (place, sums), (parent, arc_head, arc_end), ends, path, now = search
    v, start, height, names = now[0], now[1], now[2], now[3]
    if state[v] == FINISHED:
        for i in range(height):
            state[path[i]] = FINISHED
        height = 0
        while state[v] == FINISHED:
            start += 1
            if start > n:
                return 0
            v = place[start]
    elif state[v] == ON_PATH:
        height = _contract(column, n, v, names, search, height)
        names += 1
    h, worth[v] = _best_head(column[v, : n + 1], single_root)
    arc_head[name[v]], arc_end[name[v]] = h, ends[v, h] if name[v] > n else v
    parent[name[v]] = NOBODY
    if single_root and h == 0:
        sum_up(names, search)
        arc_end[name[v]], worth[v] = _best_below_root(v, search)
    sums[WORTH, name[v]] = worth[v]
    state[v], path[height] = ON_PATH, v
    now[0], now[1], now[2], now[3] = place[h], start, height + 1, names
    return v if worth[v] > -np.inf else -1


@compiled()
def arc_worth(score, head, m, single_root, search):
    """What an arc to m is worth to the place of m: its score less the worth of the arcs that it replaces.

    For the root's only arc it is the score plus the worth of all that it keeps. What it replaces may be as bad as can
    be, since the root's arcs were not among the choices, and would take all digits with it.
    """
    sums = search[1][1]
    return score + sums[KEPT, m] if single_root and head == 0 else score - sums[REPLACED, m]


@compiled()
def _best_below_root(v, search):
    """The word at the place v that should hang on the root if only one may, and what that is worth."""
    (_, _, following, _), (_, sums), _, _, _, _ = search
    end, best, m = v, -np.inf, v
    while True:
        worth = sums[ROOT, m] + sums[KEPT, m]
        if worth > best:
            end, best = m, worth
        m = following[m]
        if m == v:
            return end, best


@compiled()
def sum_up(names, search):
    """Fills the sums of all names below `names`. Nothing is subtracted: a worth of −1e30 leaves no trace elsewhere."""
    _, (_, sums), (parent, _, _), _, _, _ = search
    sums[INSIDE:, :names] = 0.0
    # Those inside have lower names.
    for s in range(1, names):
        if parent[s] != NOBODY:
            sums[KEPT, s] = sums[INSIDE, parent[s]]
            sums[INSIDE, parent[s]] += sums[WORTH, s] + sums[INSIDE, s]
    for s in range(names - 1, 0, -1):
        if parent[s] != NOBODY:
            sums[KEPT, s] += sums[AFTER, parent[s]] + sums[KEPT, parent[s]]
            sums[AFTER, parent[s]] += sums[WORTH, s] + sums[INSIDE, s]


@compiled()
def _contract(column, n, v, new_name, search, height):
    """Makes a supernode in the place of v of the path from v on; returns the height of the path before it."""
    (_, name, following, worth), (place, sums), (parent, _, _), ends, path, _ = search
    row, end = column[v, : n + 1], ends[v, : n + 1]
    if name[v] <= n:
        end[:] = v
    for h in range(n + 1):
        row[h] -= worth[v]
    height -= 1
    while path[height] != v:
        u = path[height]
        if name[u] <= n:
            _take_over_word(column[u, : n + 1], u, worth[u], row, end)
        else:
            _take_over(column[u, : n + 1], ends[u, : n + 1], worth[u], row, end)
        parent[name[u]] = new_name
        following[u], following[v] = following[v], following[u]
        height -= 1
    parent[name[v]] = new_name
    name[v] = new_name
    u = v
    while True:
        sums[REPLACED, u] += worth[place[u]]
        place[u], row[u] = v, -np.inf
        u = following[u]
        if u == v:
            return height


@compiled()
def best_heads(column, n, single_root, search, heads):
    """Writes the head of each word 1 … n in a best tree to `heads`; whether there is a tree. Destroys `column`."""
    begin(column, n, single_root, search)
    place, roots = 1, 0
    while place > 0:
        place = advance(column, n, single_root, search)
    if place < 0:
        return False
    _, _, (parent, arc_head, arc_end), _, _, now = search
    _expand(now[3], parent, arc_head, arc_end, heads)
    for m in range(1, n + 1):
        roots += heads[m] == 0
    return roots <= 1 or not single_root


@compiled()
def _expand(names, parent, arc_head, arc_end, heads):
    """The arc into a supernode takes the place of the arcs into all its members that it enters."""
    for s in range(names - 1, 0, -1):
        if parent[s] == s:
            continue
        m = arc_end[s]
        heads[m] = arc_head[s]
        # Their own arcs are not wanted: they become their own parents.
        u = m
        while u != s:
            above = parent[u]
            parent[u] = u
            u = above


# --- slices of the batch -------------------------------------------------------------------------------------------


@compiled()
def is_feasible(arc, labels, heads, n):
    """Whether the tree's score, with its best labels, is one in the scores' dtype: a sum of finite ones may be −inf."""
    total = 0.0
    for m in range(1, n + 1):
        total += best_label(arc[heads[m], m * labels : (m + 1) * labels])
    return arc.dtype.type(total) > -np.inf


@compiled()
def write_heads(arc, heads, n, labels, out):
    """Sets out[h, m · labels + l] = 1 at the arcs of the tree, with the first best label."""
    for m in range(1, n + 1):
        h, label = heads[m], m * labels
        for part in range(m * labels + 1, (m + 1) * labels):
            if arc[h, part] > arc[h, label]:
                label = part
        out[h, label] = 1.0


@kernel()
def _best(start, stop, arc, lengths, single_root, out):
    size = arc.shape[1]
    labels = arc.shape[2] // size
    column, heads, search = np.empty((size, size)), np.empty(size, np.int64), new_search(size)
    for b in range(start, stop):
        n = lengths[b]
        out[b] = 0
        if not read_columns(arc[b], n, labels, column):
            fill_usable(out[b], n, labels, np.nan)
        elif best_heads(column, n, single_root, search, heads) and is_feasible(arc[b], labels, heads, n):
            write_heads(arc[b], heads, n, labels, out[b])


def argmax(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    best = torch.empty_like(arc)
    over_rows(
        _best,
        len(arc),
        4 * arc.numel(),
        arc.flatten(2).numpy(),
        words.numpy(),
        bool(single_root),
        best.flatten(2).numpy(),
    )
    return from_arcs(best, directed, arc.dim() == 4)
