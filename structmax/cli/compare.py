"""`structmax compare <recipe>`: runs of several settings and seeds, side by side. Finished ones are not run again."""

import os
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import typer
from rich.progress import track

from structmax import recipes
from structmax.cli import flags, workers
from structmax.cli.run import drawn, reported, show_report
from structmax.cli.speech import console, number, say, spoken, table
from structmax.plots import tables
from structmax.recipes import Recipe
from structmax.training import Interrupted, RunError, RunFolder, Settings, changed, comparison, name_of, run
from structmax.training.comparison import Member, Outcome
from structmax.training.origin import origin

PANEL = "Comparison"


def command(recipe: Recipe) -> Any:
    """The command that compares runs of a recipe."""

    @spoken()
    def act(ctx: typer.Context, given: dict[str, Any]) -> None:
        over, config = _asked(recipe, ctx, given)
        name = f"over={'+'.join(over)}" + ("," + name_of(config)) * (name_of(config) != "default")
        folder = flags.placed(given, recipe.name, name)
        members = comparison.members(config, over, given["seeds"])
        began = origin(flags.spelt(["structmax", "compare", recipe.source], all_flags, given, config))
        say(f"{len(members)} runs of {recipe.name} in {folder.path}")
        again = "The same command" + " without --overwrite" * given["overwrite"]
        with folder.locked(), spoken(f"{again} resumes it: finished runs are kept."):
            if given["overwrite"]:
                for member in members:
                    RunFolder(folder.path / member.name).clear()
            outcomes = dict(_outcomes(recipe.source, members, folder.path, given["jobs"]))
            compared = {
                "recipe": recipe.name,
                "best": recipe.task.best,
                "better": recipe.task.better(),
                "meanings": recipe.task.meanings,
                "over": over,
                "seeds": given["seeds"],
                "rows": comparison.rows(members, outcomes, recipe.task.best, recipe.task.better()),
                "runs": {member.name: member.name for member in members},
                "settings": {name: value for name, value in asdict(config).items() if name not in (*over, "seed")},
                "changed": changed(config),
                "origin": began,
            }
            _write(folder, compared)
        _show(compared)
        show_report(_drawn(folder, members, compared["rows"]), given["open"])
        if any(row["error"] for row in compared["rows"]):
            raise typer.Exit(1)

    own = [
        flags.flag(
            "over",
            list[str],
            ...,
            "values of one field to compare, field=a,b,c, or field=all for those that other settings allow; repeatable",
            PANEL,
        ),
        flags.flag("seeds", int, 3, "number of runs of each setting, with seeds 0, 1, …", PANEL),
        flags.flag("jobs", int, 1, "number of runs at the same time, each in a process of its own", PANEL),
    ]
    shared = [flag for flag in flags.of_config(recipe.name, recipe.config) if flag.name != "seed"]
    about = f"Compare settings of {recipe.name}: all combinations of the values of --over, each with several seeds."
    all_flags = [*own, *shared, *flags.of_place("comparison")]
    return flags.command(recipe.name, about, all_flags, act)


def _asked(recipe: Recipe, ctx: typer.Context, given: dict[str, Any]) -> tuple[dict[str, list[Any]], Settings]:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter("compare should be started as one process, not by torchrun. Try --jobs.")
    over = flags.parsed(recipe.config, given["over"])
    if "seed" in over or given["seeds"] < 1 or given["jobs"] < 1:
        raise typer.BadParameter(
            "--seeds and --jobs should be at least 1, and seeds should come from --seeds, not --over."
        )
    if twice := flags.typed(ctx, list(over)):
        raise typer.BadParameter(f"{', '.join(twice)} should be given once, but is given both as a flag and in --over.")
    base = {field.name: given[field.name] for field in fields(recipe.config) if field.name in given}
    for name, values in over.items():
        over[name] = [v for v in values if _is_allowed(recipe, base, name, v, f"{name}=all" in given["over"])]
    return over, flags.build(recipe.config, base)


def _is_allowed(recipe: Recipe, base: dict[str, Any], name: str, value: Any, may_be_left_out: bool) -> bool:
    """Whether the other settings allow this value. One that was not asked for by its name may be left out."""
    try:
        flags.build(recipe.config, base | {name: value})
    except typer.BadParameter as error:
        if not may_be_left_out:
            raise
        say(f"{name}={value} is left out. {error}")
        return False
    return True


# ---------------------------------------------------------------- the runs


def _outcomes(recipe: str, members: Sequence[Member[Any]], folder: Path, jobs: int) -> Iterator[tuple[str, Outcome]]:
    """The outcome of each member as it ends; a line is printed for each."""
    ended = _in_turn(recipe, members, folder) if jobs == 1 else _at_once(recipe, members, folder, jobs)
    is_watched = console.is_terminal
    for name, outcome in track(ended, "", len(members), console=console, transient=True, disable=not is_watched):
        if outcome.summary:
            test = "  ".join(f"{metric} {number(value)}" for metric, value in outcome.summary["test"].items())
            say(f"{name}  {test}  {outcome.summary['seconds']:.1f} s")
        else:
            say(f"{name}  failed: {outcome.error}")
        yield name, outcome


def _in_turn(recipe: str, members: Sequence[Member[Any]], folder: Path) -> Iterator[tuple[str, Outcome]]:
    for member in members:
        yield member.name, _outcome(recipe, asdict(member.config), folder / member.name)


def _at_once(recipe: str, members: Sequence[Member[Any]], folder: Path, jobs: int) -> Iterator[tuple[str, Outcome]]:
    # the config goes as plain values: another process knows its class when it has found the recipe
    pieces = [(recipe, asdict(member.config), folder / member.name) for member in members]
    for place, outcome in workers.each(_outcome, pieces, jobs):
        yield members[place].name, outcome


def _outcome(source: str, config: dict[str, Any], folder: Path) -> Outcome:
    """Runs one member, unless it has been run. Its failure is an outcome; a signal is not."""
    place = RunFolder(folder)
    try:
        is_new = place.summary is None
        recipe = recipes.find(source)
        settings = recipe.config(**config)
        again = flags.spelt(["structmax", "run", source], flags.of_config(recipe.name, recipe.config), {}, settings)
        summary = run(recipe.task, settings, folder, command=again)
        if is_new:
            drawn(place)
        return Outcome(summary)
    except Interrupted:
        raise
    except RunError as error:
        return Outcome(error=str(error))
    except Exception as error:
        trace = traceback.format_exc()
        place.move_in("error.txt", lambda path: path.write_text(trace, encoding="utf-8"))
        return Outcome(error=f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------- what came of them


def _write(folder: RunFolder, compared: dict[str, Any]) -> None:
    folder.write("compare.json", compared)
    folder.write_text("compare.csv", tables.as_csv(compared))
    folder.write_text("compare.tex", tables.as_latex(compared))


def _show(compared: dict[str, Any]) -> None:
    rows, metrics = compared["rows"], tables.metric_names(compared["rows"])
    lines = table(*rows[0]["setting"], *metrics, "seconds")
    for row in rows:
        cells = (" ± ".join(filter(None, tables.estimate(row["metrics"].get(name, {})))) for name in metrics)
        lines.add_row(*map(str, row["setting"].values()), *cells, f"{row['seconds']:.1f}")
    console.print(lines)
    if compared["seeds"] > 1:
        say("± is half of the 95 % confidence interval of the mean over seeds.")
    for row in rows:
        if row["error"]:
            say(f"{', '.join(f'{field}={value}' for field, value in row['setting'].items())} failed: {row['error']}")


def _drawn(folder: RunFolder, members: Sequence[Member[Any]], rows: list[dict[str, Any]]) -> Path:
    """The report, and a picture with a curve of each setting: the mean of its seeds, in a band."""
    from structmax.plots import curves

    # the best first, as in the report, so that they have the same colours
    ranked = [member for row in rows for member in members if member.setting == row["setting"]]
    runs = {member.name: RunFolder(folder.path / member.name).rows for member in ranked}
    figure = curves.draw(runs, {member.name: ", ".join(map(str, member.setting.values())) for member in ranked})
    folder.move_in("curves.png", figure.savefig)
    return reported(folder)
