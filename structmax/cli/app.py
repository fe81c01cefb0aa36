"""The commands, each a function; those of recipes are made when they are called."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from typer.core import TyperGroup

import structmax
from structmax import bench, recipes
from structmax.cli import compare, explore, flags, info, run, warm_up
from structmax.cli.speech import console, say, spoken, table
from structmax.training import RunError, RunFolder
from structmax.training.distributed import device_of

# in the folder of the run if only one is given, otherwise in the current folder
CURVES = Path("curves.png")

app = typer.Typer(
    name="structmax",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(is_asked: bool) -> None:
    if is_asked:
        say(f"structmax {structmax.__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Structures inside neural networks: train recipes, compare them and look at the results."""


def by_recipe(name: str, help: str, command: Callable[[recipes.Recipe], Any]) -> None:
    """A command of each recipe, made when it is called, so that only this recipe is imported."""

    class Group(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return recipes.names()

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Help and completion look at all recipes: one that cannot be loaded shows the reason as its help."""
            try:
                return command(recipes.find(cmd_name))
            except RunError as error:
                return flags.command(cmd_name, str(error), [], lambda ctx, given: None)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """The command that is called: problems with it are usage errors."""
            try:
                return args[0], command(recipes.find(args[0])), args[1:]
            except RunError as error:
                if ctx.resilient_parsing:
                    return None, None, args
                raise typer.BadParameter(str(error), ctx) from None

    group = typer.Typer(cls=Group, no_args_is_help=True, subcommand_metavar="RECIPE [OPTIONS]")
    # typer takes a group without commands for a mistake, unless it has a callback
    group.callback()(lambda: None)
    app.add_typer(group, name=name, help=help)


by_recipe("run", "Train a recipe, or one in a file of your own (./mine.py); its settings are the flags.", run.command)
by_recipe(
    "compare",
    "Train a recipe, or one in a file of your own, in several settings, each with several seeds.",
    compare.command,
)


@app.command("list")
def list_recipes() -> None:
    """List the recipes."""
    for name in recipes.names():
        say(f"{name:<12}{_about(name)}")


def _about(name: str) -> str:
    try:
        return recipes.find(name).about.partition("\n")[0]
    except RunError as error:
        return str(error)


def _runs_of(path: Path) -> list[RunFolder]:
    """The run of that folder, or all runs of that comparison; or a usage error."""
    folder = RunFolder(path)
    if folder.config is not None:
        return [folder]
    if (compared := folder.read("compare.json")) is not None:
        return [RunFolder(path / str(name)) for name in compared["runs"].values()]
    raise typer.BadParameter(f"{path} should hold a config.json or a compare.json, but has neither. Is it a run?")


@app.command("plot")
@spoken()
def plot_runs(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs or of comparisons")],
    to: Annotated[
        Path, typer.Option(help="file of the picture; by default, curves.png in the run's folder if only one is given")
    ] = CURVES,
) -> None:
    """Draw the learning curves of one or several runs in one picture."""
    from structmax.plots import curves

    folders = [folder for run in runs for folder in _runs_of(run)]
    names = [folder.path.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.path) for folder in folders]
    figure = curves.draw({name: folder.rows for name, folder in zip(names, folders, strict=True)})
    path = runs[0] / to if to == CURVES and len(runs) == 1 else to
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise typer.BadParameter(f"--to should end in one of {', '.join(known)}, but is {to}.")
    RunFolder(path.parent).move_in(path.name, figure.savefig)
    say(f"The curves: {path}")


@app.command("report")
@spoken()
def rewrite_report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run or of a comparison")],
) -> None:
    """Write the report of a run or a comparison again."""
    _runs_of(path)
    say(f"The report: {run.reported(RunFolder(path))}")


@app.command("explore")
def explore_structures(
    port: Annotated[int, typer.Option(min=0, max=65535, help="where to listen, on this machine only; 0 is any")] = 8231,
    show: Annotated[bool, typer.Option("--open/--no-open", help="show the page in the browser")] = True,
) -> None:
    """Open a page in the browser: drag scores, and see argmax, marginals, SparseMAP, samples and gradients."""
    explore.serve(port, show)


@app.command("info")
def show_info() -> None:
    """Show versions, devices, which backend each structure uses, caches and recipes."""
    info.show()


@app.command("warm-up")
@spoken()
def compile_ahead(
    structures: Annotated[
        list[str] | None, typer.Argument(metavar="STRUCTURE", help="structures such as LinearChain; by default, all")
    ] = None,
    double: Annotated[bool, typer.Option("--double", help="compile for float64 instead of float32")] = False,
) -> None:
    """Compile kernels ahead of time, so that first calls do not wait for compilation."""
    warm_up.compile_ahead(structures or [], torch.float64 if double else torch.float32)


@app.command("bench")
def time_questions(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1")] = "cpu",
    only: Annotated[str, typer.Option(help="show only rows whose title contains this text")] = "",
) -> None:
    """Time the main functions of the main structures on this machine."""
    try:
        place = str(device_of(device))
    except RunError as error:
        raise typer.BadParameter(str(error)) from None
    lines = table(f"milliseconds on {place}", "size", "forward", "and backward")
    for row in bench.measure(place, only):
        both = "–" if row.both is None else f"{row.both:.3f}"
        lines.add_row(row.case.title, row.case.size, f"{row.forward:.3f}", both)
    if not lines.row_count:
        titles = ", ".join(case.title for case in bench.CASES)
        raise typer.BadParameter(f"--only should be contained in one of {titles}, but is {only!r}.")
    console.print(lines)
