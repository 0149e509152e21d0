"""The picture of a report: a row for each message, for light and dark mode, whatever the messages contain."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import pytest

from tarry import Fixed, Message, consumer
from tarry.testing import Report, Sandbox
from tarry.tools.story.svg import DARK, LIGHT, RADIUS, TICK_SPACE, TimeScale, attempt_at, fit
from tarry.tools.testing.drawing import LEFT, MOST_ROWS, RIGHT
from tests.sandboxes import work

SVG = "{http://www.w3.org/2000/svg}"
BODY = '</text><script>alert(1)</script>&amp;]]>"\r\n\u202e日本語😀' + "W" * 5_000
ERROR = f"{BODY}\x00\x1b[31m\ud800\ufffe"
"""A text with characters that SQS refuses in bodies."""


@consumer(max_attempts=2, backoff=Fixed(3600))
def handler(message: Message) -> None:
    if message.body.startswith("bad"):
        raise ValueError(ERROR)


def run(sandbox: Sandbox, *bodies: str, handler: Any = handler) -> Report:
    work(sandbox, handler, *bodies)
    return sandbox.run(check=False)


@pytest.fixture
def drawn(tmp_path: Path) -> Any:
    def drawn(report: Report) -> Element:
        report.svg(tmp_path / "run.svg")
        return ET.parse(tmp_path / "run.svg").getroot()

    return drawn


def texts(picture: Element) -> list[str]:
    """Return the visible texts."""
    return ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]


def titles(picture: Element) -> list[str]:
    """Return the texts that a pointer over a mark shows."""
    return [title.text or "" for group in picture.iter(f"{SVG}g") for title in group.iter(f"{SVG}title")]


def shapes(picture: Element, kind: str) -> Iterator[Element]:
    return (each for each in picture.iter() if kind in each.get("class", "").split())


def test_a_picture_shows_messages_states_attempts_faults_and_broken_rules(sandbox: Sandbox, drawn: Any) -> None:
    def forgetful(event: Any, context: Any) -> Any:
        response = handler(event, context)
        return {"batchItemFailures": []} if sandbox.elapsed < 60 and len(event["Records"]) > 1 else response

    sandbox.faults.add("throttle", operation="GetQueueAttributes")
    picture = drawn(run(sandbox, "good", "bad", handler=forgetful))
    assert "2 messages: 2 COMMITTED" in texts(picture)
    assert any(re.fullmatch(r".* of virtual time, seed 0, \d violations? of rules", text) for text in texts(picture))
    assert len([*shapes(picture, "attempt")]) == 2 + 1, "two rows and the legend"
    assert len([*shapes(picture, "fault")]) == 2 + 1
    assert any(re.match(r"\d.* rule broken: no message is lost: ", title) for title in titles(picture))
    assert any("fault: throttle of GetQueueAttributes" in title for title in titles(picture))
    with Sandbox() as fresh:
        waiting = drawn(run(fresh, "bad"))
    assert [*shapes(waiting, "WAITING_RETRY")]
    assert {"1 h", "1", "2", "DEAD_LETTERED"} <= set(texts(waiting))


def test_a_picture_is_valid_and_bounded_whatever_the_messages_contain(sandbox: Sandbox, drawn: Any) -> None:
    picture = drawn(run(sandbox, f"bad {BODY}", BODY))
    assert [*picture.iter(f"{SVG}script")] == []
    assert max(map(len, texts(picture))) < 130
    assert max(map(len, titles(picture))) < 3_000
    assert all(text.isprintable() for text in texts(picture))


def test_a_picture_of_many_messages_shows_the_important_ones_and_says_what_it_leaves_out(
    sandbox: Sandbox, drawn: Any
) -> None:
    report = run(sandbox, *("good" for _ in range(MOST_ROWS + 20)), "bad")
    picture = drawn(report)
    names = [text for text in texts(picture) if re.match(r"[0-9a-f]{8} ", text)]
    assert len(names) == MOST_ROWS
    assert names[-1].endswith(" bad")
    assert "and 21 more messages" in texts(picture)
    assert drawn(Report([], began=0, now=0, settled=True, seed=0)).find(f"{SVG}title").text == "no messages"


def test_every_colour_has_one_for_light_and_one_for_dark_mode(sandbox: Sandbox, tmp_path: Path) -> None:
    run(sandbox, "1").svg(str(tmp_path / "run.svg"))
    light, dark = (tmp_path / "run.svg").read_text("utf-8").split("@media (prefers-color-scheme: dark)")
    assert set(LIGHT) == set(DARK)
    assert all(colour in light for colour in LIGHT.values())
    assert all(colour in dark for colour in DARK.values())


def test_seconds_and_hours_can_both_be_read_on_the_scale() -> None:
    burst = [step / 100 for step in range(200)]
    scale = TimeScale([0, *burst, 60, 62, 7_200, 7_201], LEFT, RIGHT)
    assert scale.x(burst[-1]) < scale.x(60) - 60
    assert scale.x(62) - scale.x(60) > 15
    assert scale.x(7_201) == RIGHT
    ticks = [*scale.ticks(0)]
    assert ticks[0][1] == "0 s"
    assert all(later - earlier >= TICK_SPACE for (earlier, _), (later, _) in pairwise(ticks))
    assert TimeScale([5], LEFT, RIGHT).x(5) < RIGHT


def test_a_text_is_cut_to_the_space_it_has() -> None:
    assert fit("short", 100, 12) == "short"
    assert fit("W" * 100, 100, 12) == "W" * 9 + "…"
    assert len(fit("i" * 100, 100, 12)) > len(fit("日" * 100, 100, 12))


def test_an_attempt_whose_mark_would_cover_the_last_one_is_a_dot() -> None:
    marks = [attempt_at("", 100 + space * RADIUS, 0, 7, 100.0) for space in (1.5, 2)]
    assert [(">7<" in mark, f'r="{RADIUS}"' in mark) for mark in marks] == [(False, False), (True, True)]
