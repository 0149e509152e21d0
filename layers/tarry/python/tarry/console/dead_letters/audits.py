"""The last lines of the audit file: what was done to queues, by this console and by the commands."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.console.dead_letters.filters import problem_of

if TYPE_CHECKING:
    from pathlib import Path

READ_BYTES = 4 * 1024 * 1024
"""How much of the end of the file is read: a line with a thousand ids has about 40 kB."""
MAX_RUNS = 200
LEFT_OUT = "(a condition on bodies, which this console does not show)"
NOT_SHOWN_APART = frozenset({"v", "at", "ended_at", "command", "who", "user", "outcomes", "ids", "more_ids", "queues"})


class AuditedRun(NamedTuple):
    """A line of the audit."""

    at: str
    command: str
    who: str
    queues: tuple[str, ...]
    outcomes: tuple[tuple[str, int], ...]
    details: tuple[tuple[str, str], ...]
    """The options of the run, and how it ended."""
    ids: tuple[str, ...]
    more_ids: int


class AuditPage(NamedTuple):
    """The last runs, the newest first."""

    runs: tuple[AuditedRun, ...]
    is_cut: bool
    """Whether the file has earlier lines."""
    damaged: int
    """The number of lines that cannot be read."""


def read_audit(path: Path, *, shows_bodies: bool = True) -> AuditPage:
    """Read the end of an audit file; one that does not exist has no runs. Raises `OSError`.

    Without ``shows_bodies``, conditions that compare bodies are left out: they have parts of them.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return AuditPage((), False, 0)
    is_cut = size > READ_BYTES
    runs: list[AuditedRun] = []
    damaged = 0
    for line in reversed(lines[1:] if is_cut else lines):
        if len(runs) >= MAX_RUNS:
            is_cut = True
            break
        run = _run(line, shows_bodies=shows_bodies)
        damaged += run is None
        if run is not None:
            runs.append(run)
    return AuditPage(tuple(runs), is_cut, damaged)


def _run(line: bytes, *, shows_bodies: bool) -> AuditedRun | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("command"), str):
        return None
    if not shows_bodies and isinstance(found.get("where"), list):
        found["where"] = [
            each if problem_of(str(each), shows_bodies=False) is None else LEFT_OUT for each in found["where"]
        ]
    outcomes = found.get("outcomes")
    ids, queues = found.get("ids"), found.get("queues")
    details = {name: value for name, value in found.items() if name not in NOT_SHOWN_APART and value}
    return AuditedRun(
        at=str(found.get("at", "")),
        command=found["command"],
        who=str(found.get("who") or found.get("user") or "unknown"),
        queues=tuple(map(str, queues)) if isinstance(queues, list) else (),
        outcomes=tuple((str(name), int(count)) for name, count in outcomes.items() if isinstance(count, int))
        if isinstance(outcomes, dict)
        else (),
        details=tuple((name.replace("_", " "), _text(value)) for name, value in details.items()),
        ids=tuple(map(str, ids)) if isinstance(ids, list) else (),
        more_ids=found["more_ids"] if isinstance(found.get("more_ids"), int) else 0,
    )


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "; ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
