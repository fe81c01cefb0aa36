"""`which`: which backend answers each question."""

from typing import Any

from structmax import check
from structmax.backends import DEVICES, explain, intractable, near
from structmax.contract import RETURNS, AbstractRelaxation, AbstractStructure, families
from structmax.rooms import found, marked


def which(scores: Any, structure: AbstractStructure) -> dict[str, str]:
    """Which backend would run for each question about `structure` with these scores, and why not a faster one.

    Args:
        scores: the scores, or any tensor on the device in question.
        structure: the structure.

    Returns:
        For each question the backend `auto` would take, with the file that answers and the reasons against faster
        backends; or "refused", with the reason. A mathematical reason is given once; later ones refer to it.

    Examples:
        >>> import torch, structmax
        >>> answers = structmax.which(torch.zeros(3), structmax.Simplex())
        >>> answers["log_partition"], answers["smoothed"]
        ('numba (simplex/kernel_numba)', 'numba (recursion/kernel_numba)')
    """
    check.instance("structure", structure, AbstractStructure, "a structure such as Simplex()")
    tensors = structure.tensors(scores)
    check.a_tensor("scores", tensors[0])
    device, room = tensors[0].device.type, structure.room
    answers: dict[str, str] = {}
    # the first question that has it, by the reason
    said: dict[str, str] = {}
    # only where conv(Y) itself is out of reach
    relaxes = families("relax") if not isinstance(structure, AbstractRelaxation) else ()
    for name in dict.fromkeys((*RETURNS, *marked(room))):
        if name in relaxes:
            continue
        reasons = explain(room, name, device)
        if able := near(room, name, device, reasons):
            faster = list(reasons)[: list(reasons).index(able[0])]
            against = [f"{backend}: {reasons[backend]}" for backend in faster if DEVICES[backend] == device]
            where = " on the host" if DEVICES.get(able[0], device) != device else ""
            answer = found(room, name, able[0])
            host = next((backend for backend in able[1:] if DEVICES.get(backend, device) != device), None)
            if answer.yields is not None and host is not None:
                against.append(f"{host} on the host where it is faster")
            answers[name] = f"{able[0]}{where} ({'; '.join([answer.home, *against])})"
        elif why := intractable(room, name):
            answers[name] = f"refused, as `{said[why]}` is" if why in said else f"refused: {why}"
            said.setdefault(why, name)
        else:
            every = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())
            answers[name] = f"refused: {every}"
    return answers
