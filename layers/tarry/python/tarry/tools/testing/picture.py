"""The picture of a report: the timelines of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.text import coarse
from tarry.message.outcomes import State
from tarry.tools.testing.drawing import Drawing, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.tools.testing.report import Report
    from tarry.tools.testing.timeline import Timeline

MOST_ROWS = 100
ID_CHARACTERS = 8
BODY_CHARACTERS = 2_000
"""The most characters of a body, which is shown in full while the pointer is over it."""


def picture(report: Report) -> str:
    """Return the picture as SVG."""
    timelines = [each for each in report.history.timelines.values() if each.transitions]
    broken: dict[str, list[tuple[float, str]]] = {}
    for violation in report.violations:
        for timeline in report.concerned(violation):
            broken.setdefault(timeline.id, []).append((violation.at, f"{violation.rule}: {violation.text}"))
    shown = _most_important(timelines, broken)
    count = len(report.violations)
    return Drawing(
        [_row(each, broken.get(each.id, ())) for each in shown],
        title=_title(report),
        subtitle=f"{coarse(report.seconds) if report.seconds else '0 s'} of virtual time, seed {report.seed}",
        began=report.began,
        ended=report.began + report.seconds,
        alarm=f"{count} violation{'s'[: count != 1]} of rules" if count else "",
        note=_left_out(timelines, shown),
    ).svg()


def _most_important(timelines: Sequence[Timeline], broken: dict[str, list[tuple[float, str]]]) -> list[Timeline]:
    """Return at most 100 timelines in their order: those of broken rules before uncommitted ones before others."""
    ranked = sorted(timelines, key=lambda each: (each.id not in broken, each.state is State.COMMITTED))
    chosen = {each.id for each in ranked[:MOST_ROWS]}
    return [each for each in timelines if each.id in chosen]


def _row(timeline: Timeline, broken: Sequence[tuple[float, str]]) -> Row:
    name, body = timeline.id[:ID_CHARACTERS], timeline.latest_body[:BODY_CHARACTERS]
    return Row(name, body, timeline.transitions, timeline.faults, broken, timeline.id)


def _title(report: Report) -> str:
    counts = {state: report.count(state) for state in State}
    total = sum(counts.values())
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return f"{total:,} message{'s'[: total != 1]}: {states}" if total else "no messages"


def _left_out(timelines: Sequence[Timeline], shown: Sequence[Timeline]) -> str:
    more = len(timelines) - len(shown)
    return f"and {more:,} more message{'s'[: more != 1]}" if more else ""
