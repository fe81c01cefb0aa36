"""Flags of a command from the fields of a recipe's Config: types, defaults, help, choices."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.markup import escape

from structmax.training import RunError, RunFolder, Settings
from structmax.training.distributed import device_of
from structmax.training.errors import nearest

S = TypeVar("S", bound=Settings)
SHARED = {field.name for field in fields(Settings)}
PLACE = "Output folder"
# what file systems allow
LONGEST_NAME = 255
# of `of_place` and of `run`: they decide what happens to files, not what is computed
HOUSEKEEPING = ("overwrite", "open", "resume")


def flag(name: str, kind: Any, default: Any, help: str, panel: str) -> inspect.Parameter:
    """One parameter of a command."""
    help = escape(help)
    option: Any = typer.Option(help=help, rich_help_panel=panel)
    if choices := choices_of(kind):
        # Settings say what is wrong with a choice, for the command line as for Python
        kind, option = (
            str,
            typer.Option(
                help=help,
                rich_help_panel=panel,
                parser=lambda text: choices.get(text, text),
                metavar=f"<{'|'.join(choices)}>",
                autocompletion=lambda incomplete: [name for name in choices if name.startswith(incomplete)],
            ),
        )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def choices_of(kind: Any) -> dict[str, Any]:
    """The values of a Literal by how they are written; none of any other type."""
    return {str(choice): choice for choice in get_args(kind)} if get_origin(kind) is Literal else {}


def switch(name: str, help: str) -> inspect.Parameter:
    """A flag without a value, off unless given."""
    option = typer.Option(f"--{name}", help=help, rich_help_panel=PLACE, show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def of_place(what: str) -> list[inspect.Parameter]:
    """Flags of all that writes a folder."""
    return [
        flag("name", str, "", f"name of the {what}'s folder; by default, the settings not at their defaults", PLACE),
        flag("folder", Path, Path("runs"), "folder that holds the folders of all runs", PLACE),
        switch("overwrite", "start again, replacing the run in the folder"),
        switch("open", "show the report in the browser at the end"),
    ]


def placed(given: dict[str, Any], recipe: str, default: str) -> RunFolder:
    """The folder that the flags of `of_place` name; or a usage error."""
    name = given["name"] or default
    if "/" in name or name in (".", "..") or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        hint = "Try --folder to choose where the folder is." if given["name"] else "Try a short --name."
        raise typer.BadParameter(
            f"--name should be the name of one folder, printable, at most {LONGEST_NAME} bytes and without a slash, "
            f"but is {name!r}. {hint}"
        )
    return RunFolder(given["folder"] / recipe / name)


def of_config(recipe: str, config: type[Settings]) -> list[inspect.Parameter]:
    """Flags of a recipe: its own first, then those that all have."""
    kinds = get_type_hints(config)
    flags = []
    for field in sorted(fields(config), key=lambda field: field.name in SHARED):
        assert field.default is not MISSING, f"{field.name} of {recipe}'s Config should have a default"
        panel = "Training" if field.name in SHARED else recipe.capitalize()
        flags.append(flag(field.name, kinds[field.name], field.default, field.metadata.get("help", ""), panel))
    return flags


def command(name: str, help: str, flags: Sequence[inspect.Parameter], act: Callable[..., None]) -> Any:
    """A command with these flags; `act` gets its context and a dict of what was given."""

    def called(ctx: typer.Context, **given: Any) -> None:
        act(ctx, given)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    called.__signature__ = inspect.Signature([context, *flags])  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    # the terminal wraps lines again
    app.command(name, help=escape(re.sub(r"(?<=\S)\n(?=\S)", " ", help)))(called)
    return typer.main.get_command(app)


def spelt(
    program: Sequence[str], flags: Sequence[inspect.Parameter], given: Mapping[str, Any], config: Settings
) -> str:
    """The command line that asks for the same again: the flags that are not at their defaults.

    Args:
        program: the words before the flags.
        flags: of the command.
        given: their values.
        config: the settings, which are also flags; a run that is resumed has them from its folder.
    """
    values, words = {**given, **asdict(config)}, list(program)
    for flag in flags:
        value, option = values.get(flag.name, flag.default), f"--{flag.name.replace('_', '-')}"
        if value == flag.default or flag.name in HOUSEKEEPING:
            continue
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]
    return shlex.join(words)


def typed(ctx: typer.Context, names: Sequence[str]) -> list[str]:
    """Those of the names that were given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def build(config: type[S], values: dict[str, Any]) -> S:
    """A Config for this machine, or a usage error."""
    try:
        made = config(**values)
        device_of(made.device)
        return made
    except (ValueError, RunError) as error:
        raise typer.BadParameter(str(error)) from None


def parsed(config: type[Settings], over: Sequence[str]) -> dict[str, list[Any]]:
    """Fields and their values from `field=a,b,c`; `all` stands for every choice of a Literal."""
    kinds = {field.name: get_type_hints(config)[field.name] for field in fields(config)}
    found: dict[str, list[Any]] = {}
    for text in over:
        name, _, listed = text.partition("=")
        if name not in kinds or not listed:
            near = "" if name in kinds else nearest(name, kinds)
            raise typer.BadParameter(
                f"--over should be field=a,b,c with one of {', '.join(kinds)}, but is {text!r}.{near}"
            )
        if name in found:
            raise typer.BadParameter(f"--over {name} should be given once, with all its values, but is given twice.")
        choices = choices_of(kinds[name])
        if listed == "all" and choices:
            found[name] = list(choices.values())
        else:
            found[name] = list(dict.fromkeys(_value(name, kinds[name], choices, value) for value in listed.split(",")))
    return found


def _value(name: str, kind: Any, choices: dict[str, Any], text: str) -> Any:
    read: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: _boolean}
    try:
        return choices[text] if choices else read.get(kind, str)(text)
    except (KeyError, ValueError):
        wanted = f"one of {', '.join(choices)}" if choices else f"a value of {name} ({kind.__name__})"
        near = nearest(text, choices)
        raise typer.BadParameter(f"--over {name} should name {wanted}, but names {text!r}.{near}") from None


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]
