"""The help of all commands, and errors of wrong usage: one line on stderr.

`CommandLine` gives every command that is added to it this help; a command only has its docstring, the metavars and help
texts of its options, and its examples as epilog, one per line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from inspect import cleandoc
from io import StringIO
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from tarry.tools.cli.errors import note
from tarry.tools.cli.options import flat

MAX_WIDTH = 120
"""Longer lines are hard to read."""
NAME_STYLE, HEADING_STYLE = "cyan", "bold"
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
"""The base class of the errors of wrong usage, which Typer does not export."""
BEGINS_WITH_SHORT = re.compile(r"-\w,")


class HelpedCommand(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_of(self, ctx))


class HelpedGroup(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_of(self, ctx))

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run the command and end the process; report wrong usage as one line on stderr."""
        try:
            code = super().main(*arguments, **{**settings, "standalone_mode": False})
        except typer.Abort:
            code = 130
        except ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(str(error), err=True)  # the help
            else:
                note(f"tarry: {usage_error(error)}")
            code = 2
        sys.exit(code or 0)


class CommandLine(typer.Typer):
    """A Typer application whose commands have the help of this module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=HelpedGroup,
            no_args_is_help=settings.pop("no_args_is_help", True),
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Return the decorator that adds a command; its parameters may be groups of options."""
        add = super().command(name, cls=HelpedCommand, **settings)
        return lambda function: add(flat(function))

    def callback(self, **settings: Any) -> Callable[[Any], Any]:
        """Return the decorator that sets the function of the group itself, as `command` does."""
        add = super().callback(**settings)
        return lambda function: add(flat(function))


# help


def help_of(command: Any, ctx: Any) -> str:
    buffer = StringIO()
    console = Console(file=buffer, highlight=False, force_terminal=sys.stdout.isatty() or None)
    console.width = min(console.width, MAX_WIDTH)
    parameters = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    arguments = [(_argument_name(each), each.help or "") for each in parameters if _is_argument(each)]
    options = [(_option_names(each), _option_help(each)) for each in parameters if not _is_argument(each)]
    names = command.list_commands(ctx) if isinstance(command, TyperGroup) else []
    commands = [(name, _first_sentence(command.get_command(ctx, name))) for name in names]
    width = max(len(name) for name, _ in [*arguments, *options])
    console.print(Text.assemble(("Usage: ", HEADING_STYLE), " ".join(_usage(command, ctx, parameters))))
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        fits = all(len(line) <= console.width for line in paragraph.splitlines())
        console.print(Text("\n" + (paragraph if fits else " ".join(paragraph.split()))))
    _print_rows(console, "Commands", commands, max((len(name) for name, _ in commands), default=0))
    _print_rows(console, "Arguments", arguments, width)
    _print_rows(console, "Options", options, width)
    examples = (command.epilog or "").splitlines()
    console.print(Text(f"\nExample{'s'[: len(examples) != 1]}:", HEADING_STYLE))
    for line in examples:
        console.print(Text(f"  {line}"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def _print_rows(console: Console, title: str, rows: list[tuple[str, str]], width: int) -> None:
    if not rows:
        return
    console.print(Text(f"\n{title}:", HEADING_STYLE))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style=NAME_STYLE, width=width + 2)
    grid.add_column(ratio=1)
    for name, text in rows:
        grid.add_row(Text(f"  {name}"), Text(text))
    console.print(grid)


def _usage(command: Any, ctx: Any, parameters: list[Any]) -> Iterator[str]:
    yield ctx.command_path
    yield "[OPTIONS]"
    for each in filter(_is_argument, parameters):
        name = _argument_name(each).removesuffix("...")
        yield (name if each.required else f"[{name}]") + "..." * (each.nargs == -1)
    if isinstance(command, TyperGroup):
        yield "COMMAND"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _argument_name(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 else str(name)


def _option_names(parameter: Any) -> str:
    names = ", ".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return ("" if BEGINS_WITH_SHORT.match(names) else "    ") + names + value


def _option_help(parameter: Any) -> str:
    """Return the help text of an option, with its limits and default."""
    default = getattr(parameter.default, "value", parameter.default)
    if isinstance(default, float):
        default = f"{default:g}"
    has_default = parameter.show_default and not parameter.is_flag and default is not None
    facts = (
        "required" if parameter.required else "",
        "" if _limits(parameter)[1] is None else _limits_text(parameter),
        f"default: {default}" if has_default else "",
    )
    found = "; ".join(filter(None, facts))
    return f"{parameter.help} [{found}]" if found else str(parameter.help or "")


def _limits(parameter: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value; None for no limit."""
    holder = parameter if hasattr(parameter, "max") else getattr(parameter, "type", None)
    return getattr(holder, "min", None), getattr(holder, "max", None)


def _first_sentence(command: Any) -> str:
    first = " ".join(cleandoc(command.help or "").split("\n\n")[0].split())
    return first.partition("; ")[0].removesuffix(".") + "."


# errors


def usage_error(error: Any) -> str:
    """Return the text of an error of wrong usage, as one line with the remedy."""
    parameter = getattr(error, "param", None)
    if isinstance(error, typer.BadParameter):
        if parameter is None:
            return str(error.message)  # one of ours, which has the remedy
        name = _argument_name(parameter) if _is_argument(parameter) else max(parameter.opts, key=len)
        if limits := _limits_text(parameter):
            return f"{name} must be a number, {limits}"
        is_missing = type(error).__name__ == "MissingParameter"
        text = f"missing {parameter.param_type_name} {name}" if is_missing else f"{name}: {error.message}"
    else:
        text = str(error.message).removesuffix(".")
        if found := getattr(error, "possibilities", None):
            [nearest] = get_close_matches(error.option_name, found, n=1, cutoff=0)
            text = f"{text}. Did you mean {nearest}?"
    text = " ".join(text.replace("Value error, ", "").split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    see = f"; see {context.command_path} --help" if context is not None and not text.endswith("?") else ""
    return text[0].lower() + text[1:] + see


def _limits_text(parameter: Any) -> str:
    """Return the limits of a number as text; empty if it has none."""
    least, most = _limits(parameter)
    if most is not None:
        return f"{least} to {most}"
    return "" if least is None else f"{least} or more"
