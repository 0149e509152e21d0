"""The public names with parameters and attributes, the variables and the commands: `python -m tests.public` lists them.

Programs elsewhere are written against them. tests/unit/test_reference.py fails for a change that does not edit them.
"""

import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

from tarry.tools.cli.app import app

FILE = Path(__file__).parent / "data" / "public.txt"
MODULES = ("tarry", "tarry.world", "tarry.testing", "tarry.testing.plugin", "tarry.failed", "tarry.lint.cfn_lint")
SETTINGS = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"


def lines() -> Iterator[str]:
    for module in map(import_module, MODULES):
        own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
        for name in sorted(getattr(module, "__all__", own)):
            if not name.startswith("_"):
                yield from _of(f"{module.__name__}.{name}", getattr(module, name))
    yield from sorted(set(re.findall(r"\bTARRY_[A-Z0-9_]+\b", SETTINGS.read_text())))
    yield from _commands("tarry", typer.main.get_command(app))


def _of(name: str, value: Any) -> Iterator[str]:
    yield name + _parameters(value)
    if isinstance(value, type):
        members = {
            member
            for each in value.__mro__
            if each.__module__.startswith("tarry")
            for member in (*vars(each), *inspect.get_annotations(each))
        }
        for member in sorted(each for each in members if not each.startswith("_")):
            yield f"{name}.{member}{_parameters(inspect.getattr_static(value, member, None))}"


def _parameters(value: Any) -> str:
    value = getattr(value, "__func__", value)
    if not (inspect.isfunction(value) or isinstance(value, type)) or isinstance(value, EnumType):
        return ""  # of C code and of enums, each Python shows another signature
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
    return re.sub(r"<(function .*? at \w+|factory)>", "...", str(plain))


def _commands(name: str, command: Any) -> Iterator[str]:
    if inner := getattr(command, "commands", None):
        for each in sorted(inner):
            yield from _commands(f"{name} {each}", inner[each])
    else:
        options = sorted("/".join(each.opts + each.secondary_opts) for each in command.params)
        yield f"{name} {' '.join(options)}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
