"""The laws that every structure obeys, tested by comparison with brute-force enumeration.

`check_structure` tests a structure against all of them, as the tests of structmax do. A law asserts inside itself
and names what broke. A law that needs a function the structure does not support is left out of the report.
"""

import itertools
import sys
from collections.abc import Callable

from structmax import rooms
from structmax.contract import AbstractStructure
from structmax.testing.case import Case, MakeScores, same
from structmax.testing.chance import law_sample, law_sample_without_replacement
from structmax.testing.derivatives import law_agrees_with_reference, law_gradients, law_transforms
from structmax.testing.forms import law_codec, law_dtypes, law_padding, law_shapes
from structmax.testing.instances import law_limits, law_vmap
from structmax.testing.masks import law_masks, law_masks_in_float32
from structmax.testing.projection import law_project, law_project_gradients
from structmax.testing.risk import law_minimum_bayes_risk
from structmax.testing.smoothing import law_smoothed, law_smoothed_gradients, law_smoothed_topk
from structmax.testing.sparse import law_relax, law_relax_gradients, law_sparsemap, law_sparsemap_gradients
from structmax.testing.targets import law_rounded_once, law_target_padding
from structmax.testing.values import (
    law_argmax,
    law_counts,
    law_entropies,
    law_given,
    law_given_gradients,
    law_given_padding,
    law_log_partition,
    law_marginals,
    law_max_marginals,
    law_topk,
)

__all__ = ["Case", "applicable", "check_structure", "same"]

LAWS: dict[Callable[[Case, str], None], tuple[str, ...]] = {
    law_log_partition: ("log_partition",),
    law_marginals: ("marginals",),
    law_argmax: ("argmax",),
    law_topk: ("topk",),
    law_max_marginals: ("max_marginals",),
    law_minimum_bayes_risk: ("argmax", "marginals"),
    law_entropies: ("log_partition", "marginals", "marginals_jvp"),
    law_sample: ("sample",),
    law_sample_without_replacement: ("sample_without_replacement",),
    law_given: ("given_log_partition",),
    law_given_gradients: ("given_log_partition", "given_marginals_jvp"),
    law_given_padding: ("log_partition", "given_log_partition"),
    law_smoothed: ("smoothed", "smoothed_and_marginals", "smoothed_sample", "smoothed_log_prob"),
    law_smoothed_topk: ("smoothed_topk", "smoothed_log_prob"),
    law_smoothed_gradients: ("smoothed", "smoothed_marginals_jvp", "smoothed_log_prob_pullback", "smoothed_topk"),
    law_counts: ("log_partition",),
    law_project: ("project",),
    law_project_gradients: ("project", "project_jvp"),
    law_sparsemap: ("sparsemap",),
    law_sparsemap_gradients: ("sparsemap",),
    law_relax: ("relax",),
    law_relax_gradients: ("relax", "relax_jvp"),
    law_masks: ("argmax",),
    law_masks_in_float32: ("argmax",),
    law_padding: ("argmax",),
    law_target_padding: ("argmax",),
    law_gradients: ("log_partition", "marginals", "marginals_jvp"),
    law_shapes: ("argmax",),
    law_limits: ("argmax",),
    law_vmap: ("argmax",),
    law_dtypes: ("argmax",),
    law_rounded_once: ("argmax",),
    law_agrees_with_reference: ("log_partition", "marginals", "marginals_jvp"),
    law_transforms: ("log_partition", "marginals", "marginals_jvp"),
    law_codec: (),
}
"""Each law, and the questions it asks."""


def applicable(case: Case) -> list[tuple[Callable[[Case, str], None], str]]:
    """The laws that apply to this structure, with each backend that supports the law."""
    silent = _silent(case)

    def is_held(law: Callable[[Case, str], None], backend: str) -> bool:
        if not LAWS[law]:
            # it does not depend on the backend: once is enough
            return backend == "reference"
        if law in silent or (law is law_agrees_with_reference and backend == "reference"):
            return False
        return all(case.answers(name, backend) for name in LAWS[law])

    return [pair for pair in itertools.product(LAWS, rooms.BACKENDS) if is_held(*pair)]


def _silent(case: Case) -> set[Callable[[Case, str], None]]:
    """The laws that do not apply to this structure."""
    silent: set[Callable[[Case, str], None]] = set()
    if case.repeats_parts():
        silent |= {law_given, law_given_gradients, law_given_padding}
    if case.structure.exists(case.scores()) is None:
        silent |= {law_given_padding}
    if not case.structure.per_instance:
        silent |= {law_limits}
    return silent


def check_structure(
    structure: AbstractStructure, make_scores: MakeScores, progress: Callable[[str], None] | None = None
) -> list[str]:
    """Tests a structure against every law that applies to it; raises an AssertionError that says what broke.

    Args:
        structure: an instance, small enough to enumerate (some hundred members).
        make_scores: `make_scores(generator, dtype)` draws scores with at least one batch dimension. −inf forbids a
            part, also all parts of an instance; laws of gradients put numbers in its place.
        progress: called with the name of each law before it is tested. By default it is printed on a terminal.

    Returns:
        The laws that held, as "law on backend". Laws of unsupported questions are not among them.

    Examples:
        >>> import torch, structmax
        >>> from structmax.testing import check_structure
        >>> held = check_structure(
        ...     structmax.Simplex(), lambda generator, dtype: torch.randn(3, 4, generator=generator, dtype=dtype)
        ... )
        >>> "law_argmax on reference" in held
        True
    """
    case = Case(structure, make_scores)
    case.listable()
    held = []
    # The interpreter is slow: it runs kernels of the structure's own, not those for any recursion.
    interpreted = rooms.holder(structure.room, "triton") is not None
    for law, backend in applicable(case):
        if backend == "triton" and not interpreted:
            continue
        name = f"{law.__name__} on {backend}"
        (progress or _write)(name)
        try:
            law(case, backend)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            raise AssertionError(f"{type(structure).__name__} breaks {name}: {kind}{error}") from error
        held.append(name)
    return held


def _write(line: str) -> None:
    """Shown only on a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
