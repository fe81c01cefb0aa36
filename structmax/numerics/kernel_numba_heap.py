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
def pop(value, heap, held):
    """Takes the best candidate out, of at least one; returns it and how many are left."""
    best, held = heap[0], held - 1
    n, place = heap[held], 0
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
    return best, held
