"""What ``--env`` gives: environment variables that go before the template's, for all functions or for one."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarry.template import Function
from tarry.tooling.errors import UsageError

FOR_ALL = "Parameters"
"""What SAM CLI calls the variables of all functions in a file for its own ``--env-vars``."""
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Overrides:
    """Variables for all functions, and for some of them by logical id or name, which go before those."""

    of_all: Mapping[str, str] = field(default_factory=dict)
    of_some: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, function: Function) -> dict[str, str]:
        """The variables of a function."""
        some = self.of_some
        return {**self.of_all, **some.get(function.name, {}), **some.get(function.logical_id, {})}


def read_overrides(given: Iterable[str]) -> Overrides:
    """Read the values of ``--env``, each ``NAME=VALUE`` or a file; what comes later goes before what came earlier.

    A file has lines ``NAME=VALUE``, or is JSON: ``{"NAME": "value"}``, or as SAM CLI has it for ``--env-vars``:
    ``{"Parameters": {"NAME": "for all"}, "OrdersFunction": {"NAME": "for one"}}``.

    Raises:
        UsageError: there is no such file, or it is none of that.
    """
    of_all: dict[str, str] = {}
    of_some: dict[str, dict[str, str]] = {}
    for each in given:
        if pair := _PAIR.fullmatch(each):
            of_all[pair[1]] = pair[2]
            continue
        for name, value in _read(Path(each)).items():
            if not isinstance(value, dict):
                of_all[name] = _text(value)
            elif name == FOR_ALL:
                of_all |= {key: _text(one) for key, one in value.items()}
            else:
                of_some.setdefault(name, {}).update({key: _text(one) for key, one in value.items()})
    return Overrides(of_all, of_some)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--env takes NAME=VALUE or a file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--env {path} is no text") from error
    if not text.lstrip().startswith("{"):
        return dict(_pairs(path, text))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--env {path} is no JSON: {error}") from error
    return dict(found)


def _pairs(path: Path, text: str) -> Iterable[tuple[str, str]]:
    lines = (line.strip().removeprefix("export ") for line in text.splitlines())
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            pair = _PAIR.fullmatch(line)
            if pair is None:
                raise UsageError(f"--env {path}, line {number}: it is no NAME=VALUE")
            value = pair[2].strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            yield pair[1], value[1:-1] if quoted else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
