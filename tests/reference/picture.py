"""The picture of the README: the sample run in virtual time, drawn from the timelines of its messages."""

from __future__ import annotations

from contextlib import chdir
from math import log
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tarry.local.plan import RunSettings, make_plan
from tarry.local.runs.virtual import play
from tarry.outcome import State
from tarry.tooling.text import brief, coarse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.local.show.timeline import MessageTimeline
    from tarry.testing import Transition

ROOT = Path(__file__).parents[2]
EVENT = "events/orders.json"

WIDTH = 960
LEFT, RIGHT = 170, 710  # of the time axis
TOP, ROW = 84, 48
TICKS = (0, 10, 60, 600, 3600, 7200)
COLOURS = {State.COMMITTED: "#1a7f37", State.DEAD_LETTERED: "#cf222e"}

STYLE = """
  text { font: 13px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .quiet { fill: #59636e; font-size: 12px }
  .attempt { fill: #ffffff; font-size: 11px; font-weight: 600; text-anchor: middle }
  .delay { fill: #9a6700; font-size: 11px; text-anchor: middle }
  .middle { text-anchor: middle }
  .end { text-anchor: end }
  .grid { stroke: #d1d9e0; stroke-dasharray: 2 4 }
  .wait { stroke: #d4a72c; stroke-width: 3 }
"""


def picture() -> str:
    """Run the sample event and return the picture of the run as SVG."""
    with chdir(ROOT):
        settings = RunSettings(Path("template.yaml"), Path(EVENT), skip_time=True)
        run = play(make_plan(settings, lambda _: None), settings, lambda _: None)
    return draw(run.report.messages, run.began)


def draw(messages: Sequence[MessageTimeline], began: float) -> str:
    """Draw a line for each message; those that succeeded at once share one."""
    rows = rows_of(messages)
    longest = max(step.at - began for _, steps in rows for step in steps)
    scale = TimeScale(longest)
    bottom = TOP + ROW * len(rows)
    parts = [*_frame(messages, scale, bottom, longest)]
    for number, (names, steps) in enumerate(rows):
        parts += _row(names, steps, began, scale, TOP + ROW * number + ROW // 2)
    body = "\n".join(f"  {part}" for part in parts)
    height = bottom + 62
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def rows_of(messages: Sequence[MessageTimeline]) -> list[tuple[str, Sequence[Transition]]]:
    """Return the name and the steps of each line, the messages that succeeded at once first."""
    at_once = [message for message in messages if [step.state for step in message.steps[1:]] == [State.COMMITTED]]
    others = [message for message in messages if message not in at_once]
    others.sort(key=lambda message: message.steps[-1].at)
    together = [(" ".join(f"#{message.number}" for message in at_once), at_once[0].steps)] if at_once else []
    return [*together, *((f"#{message.number}", message.steps) for message in others)]


class TimeScale:
    """A logarithmic scale that begins at 0: seconds, minutes and hours are equally easy to read."""

    def __init__(self, longest: float) -> None:
        self._longest = self._log(longest)

    def x(self, seconds: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * self._log(seconds) / self._longest, 1)

    @staticmethod
    def _log(seconds: float) -> float:
        return log(1 + seconds / 4)


def _frame(messages: Sequence[MessageTimeline], scale: TimeScale, bottom: int, longest: float) -> Iterator[str]:
    yield '<rect x="0.5" y="0.5" width="959" height="99%" rx="10" fill="#ffffff" stroke="#d1d9e0"/>'
    dead = sum(message.state == State.DEAD_LETTERED for message in messages)
    yield _text(24, 36, f"{len(messages)} messages: {len(messages) - dead} committed, {dead} dead-lettered", "title")
    yield _text(24, 58, f"tarry local --event {EVENT} --skip-time: {coarse(longest)} in about a second", "quiet")
    for tick in TICKS:
        if tick <= longest:
            x = scale.x(tick)
            yield f'<line class="grid" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>'
            yield _text(x, bottom + 18, coarse(tick), "quiet middle")
    x, y = 24, bottom + 42
    yield f'<circle cx="{x + 9}" cy="{y}" r="9" fill="#0969da"/>' + _text(x + 9, y + 4, "1", "attempt")
    yield _text(x + 26, y + 4, "attempt", "quiet")
    yield f'<line class="wait" x1="{x + 100}" y1="{y}" x2="{x + 136}" y2="{y}"/>'
    yield _text(x + 144, y + 4, "invisible in its queue until the next attempt", "quiet")
    yield _text(WIDTH - 24, bottom + 18, "time since it was sent", "quiet end")


def _row(names: str, steps: Sequence[Transition], began: float, scale: TimeScale, y: int) -> Iterator[str]:
    yield _text(24, y + 4, names)
    places = [scale.x(step.at - began) for step in steps if step.state is State.IN_FLIGHT]
    delays = [step.delay for step in steps if step.state is State.WAITING_RETRY]
    for begin, end, delay in zip(places, places[1:], delays, strict=False):
        yield f'<line class="wait" x1="{begin}" y1="{y}" x2="{end}" y2="{y}"/>'
        if delay is not None and end - begin > 90:
            yield _text((begin + end) / 2, y - 6, coarse(delay), "delay")
    for number, x in enumerate(places, start=1):
        yield f'<circle cx="{x}" cy="{y}" r="9" fill="#0969da"/>' + _text(x, y + 4, str(number), "attempt")
    last = steps[-1]
    colour = COLOURS[last.state]
    x = places[-1] + 18
    yield f'<rect x="{x - 4}" y="{y - 6}" width="12" height="12" rx="2" fill="{colour}"/>'
    yield _text(x + 16, y + 4, last.state, style=f"fill: {colour}; font-weight: 600")
    if last.why:
        is_right = x > (LEFT + RIGHT) / 2  # where a text to the right would not fit
        yield _text(WIDTH - 24 if is_right else x - 4, y + 22, brief(last.why), "quiet end" if is_right else "quiet")


def _text(x: float, y: float, text: str, kind: str = "", *, style: str = "") -> str:
    attributes = "".join(f' {name}="{value}"' for name, value in (("class", kind), ("style", style)) if value)
    return f'<text x="{x}" y="{y}"{attributes}>{escape(text)}</text>'
