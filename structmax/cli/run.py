"""`structmax run <recipe>`: one run, its folder, its report."""

import os
import shlex
import webbrowser
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from structmax.cli import flags
from structmax.cli.progress import Bar
from structmax.cli.speech import IS_FIRST, console, number, say, spoken, table
from structmax.recipes import Recipe
from structmax.training import RunError, RunFolder, Settings, name_of, run

RESUME = "continue an interrupted run, with the settings it was started with"


def command(recipe: Recipe) -> Any:
    """The command that runs a recipe."""

    @spoken()
    def act(ctx: typer.Context, given: dict[str, Any]) -> None:
        config, folder = begun(recipe, ctx, given)
        say(f"{recipe.name} in {folder.path}")
        with spoken(_how_to_go_on(recipe, folder, given)), Bar(recipe.task.shown, config.minutes) as bar:
            summary = run(
                recipe.task, config, folder.path, bar, flags.spelt(_program(recipe), all_flags, given, config)
            )
        if IS_FIRST:
            show(summary)
            show_report(drawn(folder), given["open"])

    resume = flags.switch("resume", RESUME)
    all_flags = [*flags.of_config(recipe.name, recipe.config), *flags.of_place("run"), resume]
    return flags.command(recipe.name, recipe.about, all_flags, act)


def begun(recipe: Recipe, ctx: typer.Context, given: dict[str, Any]) -> tuple[Settings, RunFolder]:
    """The config of the run, and a folder that may have it; or a usage error."""
    names = [field.name for field in fields(recipe.config)]
    config = flags.build(recipe.config, {name: given[name] for name in names})
    folder = flags.placed(given, recipe.name, name_of(config))
    if given["resume"] and given["overwrite"]:
        raise typer.BadParameter("Only one of --resume (continue) and --overwrite (start again) should be given.")
    if given["resume"]:
        return _stored(recipe, ctx, given, folder, names), folder
    # the first process checks for all: it may have written the config by now
    if IS_FIRST and given["overwrite"]:
        folder.clear()
    elif IS_FIRST and folder.config is not None:
        raise typer.BadParameter(
            f"{folder.path} holds a run already. "
            "Try --resume to continue it, --overwrite to start it again, or another --name."
        )
    return config, folder


def _stored(recipe: Recipe, ctx: typer.Context, given: dict[str, Any], folder: RunFolder, names: list[str]) -> Settings:
    stored = folder.config
    if stored is None:
        raise typer.BadParameter(f"--resume needs {folder.path / 'config.json'}, which does not exist. Try without it.")
    path = folder.path / "config.json"
    if unknown := sorted(set(stored) - set(names)):
        raise typer.BadParameter(
            f"{path} has {', '.join(unknown)}, which {recipe.name} does not know. Start another run."
        )
    if missing := sorted(set(names) - set(stored)):
        raise typer.BadParameter(f"{path} has no {', '.join(missing)}, which {recipe.name} needs. Start another run.")
    for name in flags.typed(ctx, names):
        if given[name] != stored[name]:
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} should be {stored[name]}, as when the run in {folder.path} was started, "
                f"but is {given[name]}. Leave it out, or start another run."
            )
    try:
        return flags.build(recipe.config, stored)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{path}: {error.message} Start another run.") from None


def _how_to_go_on(recipe: Recipe, folder: RunFolder, given: dict[str, Any]) -> str:
    place = ["--name", folder.path.name, "--folder", str(given["folder"])]
    return f"Resume with: {shlex.join([*_program(recipe), *place, '--resume'])}"


def _program(recipe: Recipe) -> list[str]:
    """The words before the flags."""
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    program = ["torchrun", "--nproc-per-node", str(count), "-m", "structmax"] if count > 1 else ["structmax"]
    return [*program, "run", recipe.source]


def show(summary: dict[str, Any]) -> None:
    """What came of a run."""
    lines = table("", f"valid, best at step {summary['best']['step']}", "test")
    for name, value in summary["test"].items():
        lines.add_row(name, number(summary["best"].get(name, "")), number(value))
    console.print(lines)
    speed = f"{summary['instances_per_second']:,.0f} instances a second"
    # an older run has not measured it
    if "seconds_per_epoch" in summary:
        speed += f" and {summary['seconds_per_epoch']:.1f} s an epoch without evaluations"
    say(f"{summary['steps']} steps in {summary['seconds']:.1f} s, {speed}, on {summary['device']}")


def drawn(folder: RunFolder) -> Path:
    """Curves and the report of a finished run; returns the report."""
    # late, because matplotlib takes longer to import than some runs take
    from structmax.plots import curves

    figure = curves.draw({folder.path.name: folder.rows})
    folder.move_in("curves.png", figure.savefig)
    return reported(folder)


def reported(folder: RunFolder) -> Path:
    """The report of a run or of a comparison, written again."""
    from structmax.plots import report

    try:
        page = report.html(folder.path)
    except (OSError, ValueError) as error:
        raise RunError(str(error)) from error
    return folder.write_text("report.html", page)


def show_report(page: Path, in_browser: bool) -> None:
    say(f"The report: {page}")
    if in_browser:
        webbrowser.open(page.resolve().as_uri())
