"""`structmax warm-up`: compiles ahead, with a bar."""

import torch
import typer
from rich.progress import Progress

import structmax
from structmax.cli.speech import console, say


def known() -> dict[str, type[structmax.AbstractStructure]]:
    """The public structures by name, in alphabetical order."""
    names = sorted(set(structmax.__all__) - {"AbstractStructure"}, key=str.lower)
    public = {name: getattr(structmax, name) for name in names}
    types = {name: found for name, found in public.items() if isinstance(found, type)}
    # a graph's kernels depend on its factors
    left = {structmax.FactorGraph}
    return {name: t for name, t in types.items() if issubclass(t, structmax.AbstractStructure) and t not in left}


def compile_ahead(names: list[str], dtype: torch.dtype) -> None:
    """Compiles all kernels of those structures, or of all."""
    structures = known()
    for name in names:
        if name not in structures:
            raise typer.BadParameter(f"STRUCTURE should be one of {', '.join(structures)}, but is {name}.")
    names = names or list(structures)
    seconds = 0.0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(names))
        for name in names:
            progress.update(bar, description=name)
            seconds += structmax.warm_up(structures[name], dtype)
            progress.advance(bar)
    say(f"{', '.join(names)}: ready for {str(dtype).removeprefix('torch.')} after {seconds:.1f} s, and kept on disk.")
