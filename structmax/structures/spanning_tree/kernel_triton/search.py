"""The best tree, and scores near to 0 that have the same trees by its prices: one program for each instance.

A search keeps all that it knows of nodes and names in registers, one lane for each, and walks over rows of a table in
memory, column[m, h]: as kernel_numba/edmonds.py does, where things have the same names. Every lane of a node holds what
is known of the word or supernode it is in.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.lanes import first_lane, pick

NOBODY = tl.constexpr(-1)
# A node is not met yet, at a position ≥ 1 of the path that grows, or hangs on the root.
NEW = tl.constexpr(0)
FINISHED = tl.constexpr(-1)
# With a score that is farther below the best into its word than this, logarithms may lack the digits of a count.
FAR = tl.constexpr(1000.0)
# exp(−800) is 0 in float64.
NOTHING = tl.constexpr(800.0)


@triton.jit
def search(
    p_column, p_ends, p_below, p_near, size, n, reach,
    SINGLE_ROOT: tl.constexpr, PRICES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds the best arc into every word and supernode. Destroys `column`.

    Returns whether there is a tree; how many names were given; for each name the supernode it became part of, and both
    ends of its best arc; for each node its place, the worth of that, of all inside it, and of all but the node in it;
    the place below a single root; and what trees have lost by prices.
    """
    o_node = tl.arange(0, BLOCK)
    o_name = tl.arange(0, 2 * BLOCK)
    m_node = o_node <= n
    place, name = o_node, o_node
    depth = tl.where((o_node == 0) | (o_node > n), FINISHED, NEW)
    worth = tl.zeros((BLOCK,), tl.float64)
    inside, kept = worth, worth
    parent = tl.full((2 * BLOCK,), NOBODY, tl.int32)
    arc_head, arc_end = tl.zeros((2 * BLOCK,), tl.int32), tl.zeros((2 * BLOCK,), tl.int32)
    b_root = tl.load(p_column + o_node * size, mask=m_node & (o_node > 0), other=float("-inf"))
    lost = tl.sum(worth)
    height, names = n * 0, n + 1
    below_root, feasible = height + NOBODY, height + 1
    v = height + 1
    going = tl.where(n > 0, 1, 0)
    while going > 0:
        b_row = tl.load(p_column + v * size + o_node, mask=m_node, other=float("-inf"))
        if SINGLE_ROOT:
            b_row = tl.where(o_node == 0, float("-inf"), b_row)
        best = tl.max(b_row)
        head = first_lane(b_row == best, o_node, BLOCK)
        v_name = pick(name, o_node, v)
        end = v
        if not PRICES:
            if v_name > n:
                end = tl.load(p_ends + v * size + head)
        if SINGLE_ROOT:
            # The root is the last resort: its arc and the worth of all that it keeps are the score of a tree.
            if best == float("-inf"):
                head = head * 0
                b_below = tl.where(place == v, b_root + kept, float("-inf"))
                best = tl.max(b_below)
                end = first_lane((place == v) & (b_below == best), o_node, BLOCK)
                # a second word below the root
                feasible = tl.where(below_root == NOBODY, feasible, 0)
                below_root = v
        feasible = tl.where(best == float("-inf"), 0, feasible)
        height += 1
        m_here = place == v
        worth = tl.where(m_here, best, worth)
        depth = tl.where(m_here, height, depth)
        arc_head = tl.where(o_name == v_name, head, arc_head)
        arc_end = tl.where(o_name == v_name, end, arc_end)
        if PRICES:
            if (head > 0) | (not SINGLE_ROOT):
                price = tl.where(v_name > n, tl.maximum(best, -reach), 0.0)
                lost -= price
                # Arcs into it are worth so much less, by the same subtractions by which it was found.
                m = first_lane(m_here, o_node, BLOCK)
                while m < BLOCK:
                    o_row = m * size + o_node
                    m_row = m_node & (place != v)
                    b_below = tl.load(p_below + o_row, mask=m_row, other=0.0)
                    b_near = tl.load(p_near + o_row, mask=m_row, other=0.0)
                    tl.store(p_below + o_row, b_below - best, mask=m_row)
                    tl.store(p_near + o_row, b_near + price, mask=m_row)
                    m = first_lane(m_here & (o_node > m), o_node, BLOCK)
                tl.debug_barrier()
        position = pick(depth, o_node, head)
        if position == FINISHED:
            # So is the path; the next begins at the first node that has not been met.
            depth = tl.where(depth > 0, FINISHED, depth)
            height = height * 0
            start = first_lane(depth == NEW, o_node, BLOCK)
            v = pick(place, o_node, start)
            going = tl.where(start < BLOCK, 1, 0)
        else:
            v = pick(place, o_node, head)
            if position > 0:
                # The path from there on becomes a supernode: an arc into it is worth what it adds to that it replaces.
                m_cycle = depth >= position
                v_name = pick(name, o_node, v)
                v_worth = pick(worth, o_node, v)
                b_row = tl.load(p_column + v * size + o_node, mask=m_node, other=float("-inf")) - v_worth
                b_end = tl.full((BLOCK,), 0, tl.int32) + v
                if not PRICES:
                    if v_name > n:
                        b_end = tl.load(p_ends + v * size + o_node, mask=m_node, other=0)
                parent = tl.where(o_name == v_name, names, parent)
                whole = v_worth + pick(inside, o_node, v)
                kept = tl.where(m_cycle & (depth != position), kept + whole, kept)
                for i in range(height - position):
                    m_member = depth == height - i
                    u = tl.max(tl.where(m_member, place, 0))
                    u_name = tl.max(tl.where(m_member, name, 0))
                    u_worth = pick(worth, o_node, u)
                    o_row = u * size + o_node
                    b_other = tl.load(p_column + o_row, mask=m_node, other=float("-inf")) - u_worth
                    m_better = b_other > b_row
                    b_row = tl.where(m_better, b_other, b_row)
                    if not PRICES:
                        b_other_end = tl.full((BLOCK,), 0, tl.int32) + u
                        if u_name > n:
                            b_other_end = tl.load(p_ends + o_row, mask=m_node, other=0)
                        b_end = tl.where(m_better, b_other_end, b_end)
                    parent = tl.where(o_name == u_name, names, parent)
                    added = u_worth + pick(inside, o_node, u)
                    kept = tl.where(m_cycle & (depth != height - i), kept + added, kept)
                    whole += added
                b_row = tl.where(m_cycle, float("-inf"), b_row)
                tl.debug_barrier()
                tl.store(p_column + v * size + o_node, b_row, mask=m_node)
                if not PRICES:
                    tl.store(p_ends + v * size + o_node, b_end, mask=m_node)
                tl.debug_barrier()
                place = tl.where(m_cycle, v, place)
                name = tl.where(m_cycle, names, name)
                inside = tl.where(m_cycle, whole, inside)
                depth = tl.where(m_cycle, NEW, depth)
                height = position - 1
                names += 1
        going = tl.where(feasible > 0, going, 0)
    return feasible, names, parent, arc_head, arc_end, place, worth, inside, kept, below_root, lost


@triton.jit
def opened(names, parent, arc_head, arc_end, BLOCK: tl.constexpr):
    """The head of each word: the arc into a supernode takes the place of those into all its members that it enters."""
    o_node = tl.arange(0, BLOCK)
    o_name = tl.arange(0, 2 * BLOCK)
    heads = tl.full((BLOCK,), NOBODY, tl.int32)
    for i in range(names - 1):
        s = names - 1 - i
        if pick(parent, o_name, s) != s:
            m = pick(arc_end, o_name, s)
            heads = tl.where(o_node == m, pick(arc_head, o_name, s), heads)
            # Their own arcs are not wanted: they become their own parents.
            while m != s:
                above = pick(parent, o_name, m)
                parent = tl.where(o_name == m, m, parent)
                m = above
    return heads


@triton.jit
def usable_arcs(o_head, o_node, n):
    return (o_head <= n) & (o_node <= n) & (o_node > 0) & (o_head != o_node)


@triton.jit
def read(p_arc, p_column, size, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes column[m, h] in float64; whether a usable score is NaN or +inf, the best into each word, the least."""
    o_node = tl.arange(0, BLOCK)[None, :]
    broken = n * 0
    peak = tl.full((1, BLOCK), float("-inf"), tl.float64)
    for start in range(0, n + 1, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        m_arc = usable_arcs(o_head, o_node, n)
        b_arc = tl.load(p_arc + o_head * size + o_node, mask=m_arc, other=float("-inf")).to(tl.float64)
        broken += tl.sum(tl.where(b_arc < float("inf"), 0, 1))
        peak = tl.maximum(peak, tl.max(b_arc, 0, keep_dims=True))
        tl.store(p_column + o_node * size + o_head, b_arc, mask=(o_head <= n) & (o_node <= n))
    tl.debug_barrier()
    return broken > 0, peak


@triton.jit(do_not_specialize=["size"])
def best_trees(
    p_arc, p_lengths, p_column, p_ends, p_out, size,
    SINGLE_ROOT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ones at the arcs of a best tree."""
    i_instance = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_instance).to(tl.int32)
    p_arc += i_instance * size * size
    p_column += i_instance * size * size
    p_ends += i_instance * size * size
    p_out += i_instance * size * size
    broken, _ = read(p_arc, p_column, size, n, ROWS, BLOCK)
    words = tl.where(broken, 0, n)
    feasible, names, parent, arc_head, arc_end, _, _, _, _, _, _ = search(
        p_column, p_ends, None, None, size, words, 0.0, SINGLE_ROOT, False, BLOCK
    )
    heads = opened(tl.where(feasible > 0, names, 1), parent, arc_head, arc_end, BLOCK)
    o_node = tl.arange(0, BLOCK)
    b_score = tl.load(p_arc + heads * size + o_node, mask=heads >= 0, other=0.0).to(tl.float64)
    # A sum of finite scores may be −inf in their dtype.
    sound = tl.sum(b_score).to(p_arc.dtype.element_ty) > float("-inf")
    heads = tl.where(sound, heads, NOBODY)[None, :]
    o_node = o_node[None, :]
    for start in range(0, size, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        b_out = tl.where(heads == o_head, 1.0, 0.0)
        b_out = tl.where(broken & usable_arcs(o_head, o_node, n), float("nan"), b_out)
        tl.store(p_out + o_head * size + o_node, b_out, mask=(o_head < size) & (o_node < size))


@triton.jit
def bring_near(
    p_arc, p_extra, p_column, p_below, p_charged, p_near, p_plan, size, labels, n,
    SINGLE_ROOT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """near[h, m], logarithms of weights, twice. Returns what trees have lost: −inf if there is none.

    `extra` is what an arc's other labels add to the score of its best one. Where no score is far below the best into
    its word, trees lose that best.
    """
    _, peak = read(p_arc, p_column, size, n, ROWS, BLOCK)
    o_node = tl.arange(0, BLOCK)[None, :]
    m_word = (o_node > 0) & (o_node <= n)
    lost = tl.sum(tl.where(m_word, peak, 0.0))
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    far = n * 0
    for start in range(0, n + 1, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        m_arc = usable_arcs(o_head, o_node, n)
        o_arc = o_head * size + o_node
        b_arc = tl.load(p_arc + o_arc, mask=m_arc, other=float("-inf")).to(tl.float64) - peak
        far += tl.sum(tl.where((b_arc < -FAR) & (b_arc > float("-inf")), 1, 0))
        if p_extra is not None:
            b_arc += tl.load(p_extra + o_arc, mask=m_arc, other=0.0)
        tl.store(p_near + o_arc, b_arc, mask=(o_head <= n) & (o_node <= n))
        tl.store(p_plan + o_arc, b_arc, mask=(o_head <= n) & (o_node <= n))
    if far > 0:
        tl.debug_barrier()
        lost = _charged(
            p_arc, p_extra, p_column, p_below, p_charged, p_near, p_plan, size, labels, n, SINGLE_ROOT, BLOCK
        )  # fmt: skip
    # A sum of finite scores may be −inf in their dtype.
    return tl.where(lost.to(p_arc.dtype.element_ty) > float("-inf"), lost, float("-inf"))


@triton.jit
def _charged(
    p_arc, p_extra, p_column, p_below, p_charged, p_near, p_plan, size, labels, n,
    SINGLE_ROOT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes near scores by the prices of the best tree; returns what trees have lost."""
    o_node = tl.arange(0, BLOCK)
    m_node = o_node <= n
    for m in range(1, n + 1):
        b_row = tl.load(p_column + m * size + o_node, mask=m_node, other=float("-inf"))
        tl.store(p_below + m * size + o_node, b_row, mask=m_node)
        tl.store(p_charged + m * size + o_node, tl.zeros_like(b_row), mask=m_node)
    tl.debug_barrier()
    words = n.to(tl.float64)
    reach = NOTHING + words * tl.log((words + 1) * labels)
    feasible, _, _, _, _, place, worth, inside, kept, below_root, lost = search(
        p_column, None, p_below, p_charged, size, n, reach, SINGLE_ROOT, True, BLOCK
    )
    m_top = (place == o_node) & m_node & (o_node > 0)
    # What hangs on a single root is worth all that is inside.
    lost += tl.sum(tl.where(m_top, worth + tl.where(o_node == below_root, 0.0, inside), 0.0))
    b_root = tl.load(p_arc + o_node, mask=m_node & (o_node > 0), other=float("-inf")).to(tl.float64)
    b_best = tl.max(tl.where(o_node == below_root, worth, float("-inf")))
    # An arc of the root to other words would leave none for those that can hang on the root alone.
    b_root = tl.where(place == below_root, b_root + kept - b_best, float("-inf"))
    for m in range(1, n + 1):
        o_row = m * size + o_node
        b_below = tl.load(p_below + o_row, mask=m_node, other=float("-inf"))
        if SINGLE_ROOT:
            b_below = tl.where(o_node == 0, pick(b_root, o_node, m), b_below)
        b_near = tl.load(p_charged + o_row, mask=m_node, other=0.0) + b_below
        b_near = tl.where(b_below >= -reach, b_near, float("-inf"))
        if p_extra is not None:
            m_arc = m_node & (o_node != m)
            b_near += tl.load(p_extra + o_node * size + m, mask=m_arc, other=0.0)
        tl.store(p_near + o_node * size + m, b_near, mask=m_node)
        tl.store(p_plan + o_node * size + m, b_near, mask=m_node)
    return tl.where(feasible > 0, lost, float("-inf"))
