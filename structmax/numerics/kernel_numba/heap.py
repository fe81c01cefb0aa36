"""A heap of candidates, best first: it holds their numbers, and `value` what each is worth."""

from structmax.numerics.kernel_numba import compiled


@compiled()
def _better(value, n, m):
    # the earlier of equals
    return value[n] > value[m] or (value[n] == value[m] and n < m)


@compiled()
def push(value, heap, held, n):
    """Adds candidate n; returns how many are held."""
    place = held
    while place > 0 and _better(value, n, heap[(place - 1) // 2]):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = n
    return held + 1


@compiled()
def _sink(value, heap, held, place):
    n = heap[place]
    while True:
        below = 2 * place + 1
        if below >= held:
            break
        if below + 1 < held and _better(value, heap[below + 1], heap[below]):
            below += 1
        if not _better(value, heap[below], n):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = n


@compiled()
def arrange(value, heap, held):
    """Makes a heap of candidates in any order."""
    for place in range(held // 2 - 1, -1, -1):
        _sink(value, heap, held, place)


@compiled()
def pop(value, heap, held):
    """Takes the best candidate out, of at least one; returns it and how many are left."""
    best, held = heap[0], held - 1
    heap[0] = heap[held]
    _sink(value, heap, held, 0)
    return best, held
