"""Runs of a row in Triton: a program for each row, a lane for each entry. Derivations: ../README.md.

A run begins at its head, an entry with a mark other than 0; what comes before the first head is a run too. Marks and
sums are in memory, where entries find those of the runs before and after them. Runs only merge: a round takes the marks
from all heads that can be told apart from the others in one go, and a row is done after a round without any.
"""

import triton
import triton.language as tl

# Where rounding cannot tell whether two values meet, they meet: as in reference.py.
SLACK = tl.constexpr(2.0**-43)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def _add_in_run(head, total, time, other_head, other, other_time):
    m_new = other_head != 0
    later = tl.maximum(time, other_time)
    return head | other_head, tl.where(m_new, other, total + other), tl.where(m_new, other_time, later)


@triton.jit
def _runs(mark, z, time, p_marks, p_sums, p_times, n, BLOCK: tl.constexpr):
    """The heads before and after each entry, −1 and n for none.

    The sum and the latest time of the run up to each entry go to memory.
    """
    o = tl.arange(0, BLOCK)
    tl.store(p_marks + o, mark)
    _, sums, times = tl.associative_scan((tl.where(mark != 0, 1, 0), z, time), 0, _add_in_run)
    tl.store(p_sums + o, sums)
    tl.store(p_times + o, times)
    tl.debug_barrier()
    m_before = tl.load(p_marks + o - 1, mask=o > 0, other=0.0) != 0
    m_after = tl.load(p_marks + o + 1, mask=o + 1 < n, other=0.0) != 0
    before = tl.associative_scan(tl.where(m_before, o - 1, -1), 0, _larger)
    after = tl.associative_scan(tl.where(m_after, o + 1, n), 0, _smaller, reverse=True)
    return before, after


@triton.jit
def _size(p_counts, start, stop):
    """How many kept entries are from `start` up to before `stop`."""
    upto = tl.load(p_counts + stop - 1, mask=stop > 0, other=0.0)
    return upto - tl.load(p_counts + start - 1, mask=start > 0, other=0.0)


@triton.jit
def _bound(gap, speed, left_size, right_size, time, excess, size, m_head):
    """When a gap closes if one of its runs, of that size, moves faster from `time` on, by excess / size."""
    both = left_size * right_size
    rate = speed / both + excess / size
    m_closes = m_head & (rate > 0)
    width = (gap - time * speed) / both
    return tl.where(m_closes, time + width / tl.where(m_closes, rate, 1.0), float("inf"))


@triton.jit
def _write(p_y, p_groups, o, place, m_kept, mark, y, n, broken):
    """Values and run numbers at their places; entries that are not kept are −inf and in no run."""
    run = tl.cumsum(tl.where(mark != 0, 1, 0), 0)
    y = tl.where(broken, float("nan"), tl.where(m_kept, y, float("-inf")))
    run = tl.where(broken, 0, tl.where(m_kept, run, -1))
    tl.store(p_y + place, y.to(p_y.dtype.element_ty), mask=o < n)
    tl.store(p_groups + place, run, mask=o < n)


@triton.jit(do_not_specialize=["n"])
def fuse(p_x, p_lam, p_lines, p_y, p_groups, n, SHIFTED: tl.constexpr, BLOCK: tl.constexpr):
    """Total variation: gaps between runs close as the strength grows to λ.

    When a gap closes depends on the two runs beside it, which change only when their other gaps close. A run of size s
    moves by no more than 2 / s for each unit of strength, whatever becomes of it, so these cannot close before certain
    bounds: all gaps that close before those of their neighbours are closed at once.
    """
    i_row = tl.program_id(0).to(tl.int64)
    p_x += i_row * n
    p_marks = p_lines + i_row * 6 * BLOCK
    p_sums, p_times, p_counts = p_marks + BLOCK, p_marks + 2 * BLOCK, p_marks + 3 * BLOCK
    p_by_left, p_by_right = p_marks + 4 * BLOCK, p_marks + 5 * BLOCK
    o = tl.arange(0, BLOCK)
    lam = tl.load(p_lam + i_row)
    x = tl.load(p_x + o, mask=o < n, other=float("-inf")).to(tl.float64)
    broken = (tl.max(tl.where(x < float("inf"), 0, 1)) > 0) | ((lam >= 0) == 0)
    m_kept = (x > float("-inf")) & (broken == 0)
    lam = tl.where(broken, 0.0, lam)
    high = tl.max(tl.where(m_kept, x, float("-inf")))
    high = tl.where(high > float("-inf"), high, 0.0)
    # Measured from the greatest, nothing is lost beside large scores.
    floor = float("-inf") + lam * 0.0
    if SHIFTED:
        floor = -1.0 - 4.0 * lam
    z = tl.where(m_kept, tl.maximum(x - high, floor), 0.0)
    slack = -tl.min(z) * SLACK

    tl.store(p_counts + o, tl.cumsum(tl.where(m_kept, 1.0, 0.0).to(tl.float64), 0))
    m_before = (tl.load(p_x + o - 1, mask=(o > 0) & (o <= n), other=float("-inf")) > float("-inf")) & (broken == 0)
    previous = tl.associative_scan(tl.where(m_before, o - 1, -1), 0, _larger)
    neighbour = tl.load(p_x + previous, mask=previous >= 0, other=0.0).to(tl.float64)
    m_pair = m_kept & (previous >= 0)
    step = tl.where(m_pair, z - tl.maximum(neighbour - high, floor), 0.0)
    mark = tl.where(step > slack, 1.0, tl.where(step < -slack, -1.0, 0.0)).to(tl.float64)
    # when an entry that is no head any more was joined to its run
    time = tl.zeros_like(z)
    going = tl.where(lam > 0, 1, 0)
    while going > 0:
        before, after = _runs(mark, z, time, p_marks, p_sums, p_times, n, BLOCK)
        m_head = mark != 0
        start = tl.maximum(before, 0)
        right, left = tl.load(p_sums + after - 1), tl.load(p_sums + o - 1, mask=o > 0, other=0.0)
        right_size = tl.maximum(_size(p_counts, o, after), 1.0)
        left_size = tl.maximum(_size(p_counts, start, o), 1.0)
        right_pull = tl.load(p_marks + after, mask=after < n, other=0.0) - mark
        left_pull = mark - tl.load(p_marks + before, mask=before >= 0, other=0.0)
        # Each gap is linear in the strength; times both sizes, whole numbers stay whole.
        gap = mark * (right * left_size - left * right_size)
        speed = mark * (left_pull * right_size - right_pull * left_size)
        m_closes = m_head & (speed > 0)
        closes = tl.where(m_closes, gap / tl.where(m_closes, speed, 1.0), float("inf"))
        earliest = tl.min(closes)
        # No gap closes earlier than this, if one of its runs goes on as it does now and the other as fast as it may.
        left_time = tl.maximum(tl.load(p_times + o - 1, mask=o > 0, other=0.0), earliest)
        right_time = tl.maximum(tl.load(p_times + after - 1), earliest)
        by_left = _bound(gap, speed, left_size, right_size, right_time, 2.0 + mark * right_pull, right_size, m_head)
        by_right = _bound(gap, speed, left_size, right_size, left_time, 2.0 - mark * left_pull, left_size, m_head)
        tl.store(p_by_left + o, by_left)
        tl.store(p_by_right + o, by_right)
        tl.debug_barrier()
        bound = tl.minimum(
            tl.load(p_by_right + before, mask=before >= 0, other=float("inf")),
            tl.load(p_by_left + after, mask=after < n, other=float("inf")),
        )
        m_closing = m_closes & (closes <= tl.maximum(bound, earliest + slack)) & (closes <= lam + slack)
        time = tl.where(m_closing, closes, time)
        mark = tl.where(m_closing, 0.0, mark)
        going = tl.max(tl.where(m_closing, 1, 0))
        tl.debug_barrier()
    tl.debug_barrier()
    before, after = _runs(mark, z, time, p_marks, p_sums, p_times, n, BLOCK)
    start = tl.where(mark != 0, o, before)
    size = tl.maximum(_size(p_counts, tl.maximum(start, 0), after), 1.0)
    pull = tl.load(p_marks + after, mask=after < n, other=0.0) - tl.load(p_marks + start, mask=start >= 0, other=0.0)
    y = (tl.load(p_sums + after - 1) + lam * pull) / size
    # Without strength each entry is its own run.
    y = tl.where(lam > 0, y, z)
    mark = tl.where(lam > 0, mark, tl.where(m_pair, 1.0, 0.0))
    if not SHIFTED:
        y += high
    _write(p_y + i_row * n, p_groups + i_row * n, o, o, m_kept, mark, y, n, broken)


@triton.jit(do_not_specialize=["n"])
def cluster(p_sorted, p_order, p_lam, p_lines, p_y, p_groups, n, BLOCK: tl.constexpr):
    """OSCAR: neighbours in a descending row pool while the mean of the right one, λ added for each rank, is not less.

    Whatever violates the order ends in one cluster, so all neighbours that do are pooled at once.
    """
    i_row = tl.program_id(0).to(tl.int64)
    p_marks = p_lines + i_row * 6 * BLOCK
    p_sums, p_times = p_marks + BLOCK, p_marks + 2 * BLOCK
    o = tl.arange(0, BLOCK)
    lam = tl.load(p_lam + i_row)
    x = tl.load(p_sorted + i_row * n + o, mask=o < n, other=float("-inf")).to(tl.float64)
    place = tl.load(p_order + i_row * n + o, mask=o < n, other=0)
    broken = (tl.max(tl.where(x < float("inf"), 0, 1)) > 0) | ((lam >= 0) == 0)
    lam = tl.where(broken, 0.0, lam)
    m_there = (x > float("-inf")) & (broken == 0)
    present = tl.sum(tl.where(m_there, 1, 0))
    high = tl.max(tl.where(m_there, x, float("-inf")))
    z = tl.where(m_there, x - tl.where(high > float("-inf"), high, 0.0), float("-inf"))
    # Entries further down have no probability.
    m_kept = z > -1.0 - lam * (present - 1)
    kept = tl.sum(tl.where(m_kept, 1, 0))
    slack = (lam * kept - tl.min(tl.where(m_kept, z, 0.0))) * SLACK
    z = tl.where(m_kept, z + lam * o, 0.0)
    mark = tl.where(m_kept & (o > 0), 1.0, 0.0).to(tl.float64)
    nothing = tl.zeros_like(z)
    going = tl.where(lam > 0, 1, 0)
    while going > 0:
        before, after = _runs(mark, z, nothing, p_marks, p_sums, p_times, kept, BLOCK)
        m_head = mark != 0
        own = tl.load(p_sums + after - 1, mask=m_head, other=0.0)
        other = tl.load(p_sums + o - 1, mask=m_head, other=0.0)
        own_size, other_size = after - o, o - tl.maximum(before, 0)
        m_pooled = m_head & (other * own_size <= (own + slack * own_size) * other_size)
        mark = tl.where(m_pooled, 0.0, mark)
        going = tl.max(tl.where(m_pooled, 1, 0))
        tl.debug_barrier()
    tl.debug_barrier()
    before, after = _runs(mark, z, nothing, p_marks, p_sums, p_times, kept, BLOCK)
    size = after - tl.maximum(tl.where(mark != 0, o, before), 0)
    y = tl.load(p_sums + after - 1, mask=m_kept, other=0.0) / tl.maximum(size, 1)
    _write(p_y + i_row * n, p_groups + i_row * n, o, place, m_kept, mark, y, n, broken)
