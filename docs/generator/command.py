"""docs/reference/command.md: the commands of `tarry` and their options, from the application itself."""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from inspect import Parameter, getdoc, signature
from typing import Any, NamedTuple, get_args

from typer import Typer
from typer.models import ArgumentInfo, OptionInfo

from docs.generator.messages import wrapped
from tarry.tools.cli.app import app

LEAST_COMMANDS = 3
"""An option that this number of commands have, with the same meaning, is shown once."""


class CommandParameter(NamedTuple):
    """An argument or option of a command."""

    info: OptionInfo | ArgumentInfo
    name: str
    kind: Any
    default: Any

    @property
    def is_argument(self) -> bool:
        return isinstance(self.info, ArgumentInfo)

    @property
    def is_required(self) -> bool:
        return self.default is Parameter.empty

    @property
    def names(self) -> tuple[str, ...]:
        """The names of an option, or the name of an argument."""
        if self.is_argument:
            return (self._argument,)
        return tuple(each for each in (self.info.default, *(self.info.param_decls or ())) if isinstance(each, str))

    @property
    def _argument(self) -> str:
        return self.info.metavar or self.name.upper()

    @property
    def usage(self) -> str:
        many = "..." if "list" in str(self.kind) else ""
        return f"{self._argument}{many}" if self.is_required else f"[{self._argument}]{many}"

    @property
    def value(self) -> str:
        if self.kind is bool or self.is_argument:
            return ""
        kind = next((each for each in get_args(self.kind) if each is not type(None)), self.kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return " or ".join(f"`{each.value}`" for each in kind)
        plain = self.info.metavar or ("N" if kind is int else "TEXT")
        least, most = self.info.min, self.info.max
        limits = "" if least is None else f", {least} or more" if most is None else f", {least} to {most}"
        return f"`{plain}`{limits}"

    @property
    def shown_default(self) -> str:
        if self.is_required:
            return "Required."
        if self.default in (None, False):
            return ""
        return f"Default: `{getattr(self.default, 'value', self.default)}`."

    @property
    def row(self) -> str:
        names = ", ".join(f"`{name}`" for name in sorted(self.names, key=len))
        return _cells(names, self.value, f"{self.info.help or ''} {self.shown_default}")


class Command(NamedTuple):
    name: str
    text: str
    examples: list[str]
    parameters: list[CommandParameter]


def commands() -> list[Command]:
    """Return all commands, with their full names, in the order of the help."""
    return list(_of("tarry", app))


def _of(prefix: str, typer: Typer) -> Iterator[Command]:
    for info in typer.registered_commands:
        assert info.callback is not None
        yield _command(f"{prefix} {info.name or info.callback.__name__}", info.callback, info.epilog)
    for group in typer.registered_groups:
        if group.typer_instance is not None:
            name = f"{prefix} {_name(group.name, group.typer_instance)}"
            on_its_own = group.typer_instance.registered_callback
            if on_its_own is not None and on_its_own.callback is not None:
                yield _command(name, on_its_own.callback, group.typer_instance.info.epilog)
            yield from _of(name, group.typer_instance)


def _name(name: object, typer: Typer) -> str:
    return name if isinstance(name, str) else str(typer.info.name)


def _command(name: str, function: Callable[..., Any], epilog: object) -> Command:
    parameters = []
    for parameter_name, parameter in signature(function, eval_str=True).parameters.items():
        if arguments := get_args(parameter.annotation):
            parameters.append(CommandParameter(arguments[1], parameter_name, arguments[0], parameter.default))
    examples = epilog.splitlines() if isinstance(epilog, str) else []
    return Command(name, getdoc(function) or "", examples, parameters)


def parts() -> dict[str, str]:
    """Return the generated part of the page, by its name."""
    found = commands()
    times = Counter(each.row for command in found for each in command.parameters if not each.is_argument)
    often = [row for row, number in times.most_common() if number >= LEAST_COMMANDS]
    common = sorted({row.split(" | ")[0]: row for row in reversed(often)}.values())  # of a name, its commonest meaning
    lines = ["## Common options\n", HEADER, *common, ""]
    return {"commands": "\n".join([*lines, *(line for each in found for line in _section(each, common))]).strip()}


HEADER = "| option | value | meaning |\n| --- | --- | --- |"


def _section(command: Command, common: list[str]) -> Iterator[str]:
    arguments = [each for each in command.parameters if each.is_argument]
    options = [each for each in command.parameters if not each.is_argument]
    yield f"## `{command.name}`\n"
    if arguments:
        yield f"`{' '.join([command.name, *(each.usage for each in arguments)])}`\n"
    yield "\n\n".join(wrapped(each) for each in command.text.split("\n\n")) + "\n"
    own = [each for each in options if each.row not in common and each.info.help]
    if rows := [each.row for each in (*arguments, *own)]:
        yield "\n".join([HEADER, *rows, ""])
    for title, listed in (
        ("And [common options](#common-options): ", [each for each in options if each.row in common]),
        ("Old names, which still work: ", [each for each in options if not each.info.help]),
    ):
        if listed:
            names = ", ".join(f"`{name}`" for each in listed for name in sorted(each.names, key=len))
            yield wrapped(f"{title}{names}.") + "\n"
    if command.examples:
        yield "```sh\n" + "\n".join(command.examples) + "\n```\n"


def _cells(*texts: str) -> str:
    return "| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in texts) + " |"
