"""Letters as a person reads them. Nothing of what a letter holds is taken for markup, or reaches the terminal raw."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tarry.failed import as_json
from tarry.simulator.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console, RenderableType

    from tarry.failed import Letter

BRIEF_LENGTH = 200
LINES_SHOWN = 12
"""Lines of a traceback where it is to be short: the last ones, with where it was raised."""
BODY_SHOWN = 2_000
"""Characters of a body where it is to be short."""
WIDTH_ELSEWHERE = 200
NO_RECORD = "no record: SQS moved it by itself"


def table(letters: Sequence[Letter], console: Console) -> RenderableType:
    """One line a letter."""
    found = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    found.add_column("id", no_wrap=True)
    found.add_column("when", no_wrap=True)
    found.add_column("error", overflow="fold", ratio=1)
    found.add_column("attempts", justify="right", no_wrap=True)
    found.add_column("origin", no_wrap=True)
    for letter in letters:
        failure = letter.failure
        found.add_row(
            _text(letter.id),
            _text(_minute(failure.failed_at if failure and failure.failed_at else letter.sent_at)),
            Text(brief(letter), "" if failure else "dim"),
            _text(str(failure.attempts) if failure and failure.attempts is not None else ""),
            _text(origin_name(letter)),
        )
    return found


def brief(letter: Letter) -> str:
    """Why it died, in a line."""
    failure = letter.failure
    if failure is None:
        return NO_RECORD
    error = ": ".join(filter(None, [failure.type, failure.message]))
    if failure.reason in (None, "exhausted", "error") and error:
        return printable(_cut(error))
    return printable(_cut(": ".join(filter(None, [failure.reason, error])) or "it is not said why"))


def whole(letter: Letter) -> RenderableType:
    """All that is known of a letter."""
    return Group(*_about(letter), *_history(letter), *_traceback(letter, None), *_body(letter, None))


def in_short(letter: Letter) -> RenderableType:
    """What one must know to decide: the message, its error, the last frames, its history."""
    return Group(*_about(letter), *_history(letter), *_traceback(letter, LINES_SHOWN), *_body(letter, BODY_SHOWN))


def _about(letter: Letter) -> Iterable[RenderableType]:
    yield Text.assemble((printable(letter.id), "bold"), f"  in {printable(letter.queue)}")
    failure = letter.failure
    facts: list[tuple[str, Any]] = [
        ("SQS's id", letter.delivery_id if letter.delivery_id != letter.id else None),
        ("from", origin_name(letter) or "it does not say"),
        ("group", letter.group_id),
        ("sent", letter.sent_at),
        ("edited", letter.edited),
        ("attributes", json.dumps(as_json(letter)["attributes"]) if letter.attributes else None),
    ]
    if failure is None:
        facts += [("died", NO_RECORD), ("look for it by", insights_query(letter))]
    else:
        attempts = (
            "" if failure.attempts is None else f", after {failure.attempts} attempt{'s'[: failure.attempts != 1]}"
        )
        ran = " ".join(filter(None, [failure.function, failure.request_id and f"(request {failure.request_id})"]))
        facts += [
            ("first failed", failure.first_failed_at),
            ("died", f"{failure.failed_at or 'at some time'}: {failure.reason or 'no reason is told'}{attempts}"),
            ("error", ": ".join(filter(None, [failure.type, failure.message])) or None),
            ("said", failure.said),
            ("fingerprint", failure.fingerprint),
            ("function", ran or None),
            ("extra", json.dumps(failure.extra) if failure.extra else None),
        ]
    grid = Table.grid(padding=(0, 2, 0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts:
        if value is not None:
            grid.add_row(name, _text(str(value)))
    yield grid


def _history(letter: Letter) -> Iterable[RenderableType]:
    if letter.history:
        yield Text("\nhistory", "dim")
        for entry in letter.history:
            yield Text(f"  {printable(_entry(entry))}")


def _entry(entry: Mapping[str, Any]) -> str:
    delay = entry.get("delay")
    waited = "" if delay is None else f", then a wait of {delay} s"
    return f"{entry.get('at', '')}  attempt {entry.get('attempt', '?')}  {entry.get('error', '')}{waited}"


def _traceback(letter: Letter, most: int | None) -> Iterable[RenderableType]:
    text = letter.failure.traceback if letter.failure else None
    if text:
        lines = text.rstrip("\n").split("\n")
        shown = lines if most is None else lines[-most:]
        yield Text("\ntraceback" if len(shown) == len(lines) else "\ntraceback, its end", "dim")
        yield Text(printable("\n".join(shown), keep="\n\t"))


def _body(letter: Letter, most: int | None) -> Iterable[RenderableType]:
    yield Text("\nbody", "dim")
    yield Text(printable(letter.body[:most], keep="\n\t"))
    if most is not None and (left := len(letter.body) - most) > 0:
        yield Text(f"... and {left:,} characters more", "dim")


def insights_query(letter: Letter) -> str:
    """Where a letter has no record, the log may tell: for CloudWatch Logs Insights, on its function's log group."""
    return f'fields @timestamp, @message | filter @message like "{letter.delivery_id}" | sort @timestamp asc'


def origin_name(letter: Letter) -> str:
    """The name of the queue it came from."""
    return (letter.origin or "").rpartition(":")[2]


def _minute(moment: str | None) -> str:
    return (moment or "")[:16].replace("T", " ")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= BRIEF_LENGTH else text[: BRIEF_LENGTH - 3] + "..."


def _text(text: str) -> Text:
    return Text(printable(text))
