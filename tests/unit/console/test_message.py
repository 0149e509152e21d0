"""The page of one message: its body, its story, and the files that it offers."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tarry.failed.text import facts_of
from tarry.message.outcomes import State
from tarry.tools.console import message as page
from tarry.tools.console.message import FIRST_CHARACTERS, FIRST_LINES, FORMATTED, RAW, body_view, story_of_record
from tarry.tools.story.events import Story, StoryEvent
from tarry.tools.story.searching import FoundStory
from tests.consoles import Guest, console_at, visited
from tests.scanned import HOSTILE, attribute, moved, project, recorded, scan
from tests.unit.failed.dead_letters import NOW


@contextmanager
def visiting(**settings: Any) -> Iterator[Guest]:
    with visited(console_at("http://127.0.0.1:1", **settings)) as guest:
        yield guest


def visible(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_page_tells_why_a_message_failed_by_its_delivery_id_and_its_stable_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scan(monkeypatch, recorded("id-7", '{"order": 7}', {"tenant": attribute("north")}), moved("m-1", "plain"))
    with visiting() as guest:
        one, other, without = (guest.page(f"/message/{name}") for name in ("id-7-1", "id-7", "m-1"))
        css = guest.page("/pictures.css")
        for path in ("/message/nosuch", "/message/nosuch/body", "/message/nosuch/test.py"):
            answer = guest.get(path)
            assert (answer.status, "Scan" in answer.text) == (404, True)
    text = visible(one)
    for part in (
        "Message id-7",
        "app.CardDeclined: no",
        "exhausted, after 5 attempts",
        "shop-orders (request r-1)",
        "raise CardDeclined(&#34;no&#34;) app.CardDeclined: no",
        "Dead-lettered after 5 attempts in 21 min 40 s.",
        "2026-11-21 08:09:00.000 2 app.GatewayTimeout: no answer 1 min",
        "tenant String north",
        "{ &#34;order&#34;: 7 }",
    ):
        assert part in text, part
    assert visible(other) == text
    assert ('<svg class="picture" xmlns' in one, "<style" in one) == (True, False)  # the security policy refuses it
    assert (css.startswith(".picture {"), css.count("{")) == (True, css.count("}"))
    assert "no failure record (not dead-lettered by tarry)" in without
    assert "No times are known: this message has no failure record." in without


def test_nothing_in_a_message_is_more_than_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attributes = {"tenant": attribute(HOSTILE.replace("\x1b", ""))}
    hostile = recorded("id-7", HOSTILE, attributes, message=HOSTILE, said=HOSTILE, traceback=HOSTILE, function=HOSTILE,
                     history=[{"at": HOSTILE, "attempt": 1, "error": HOSTILE, "delay": HOSTILE}] * 2)  # fmt: skip
    scan(monkeypatch, hostile)
    with visiting(template=project(tmp_path)) as guest:
        for path in ("/message/id-7-1", "/message/id-7/body?view=raw", "/message/id-7/test"):
            html = guest.page(path)
            assert ("<script>document" in html, "<img" in html, "\\u202e" in html) == (False, False, True)
            assert not re.search("[\x1b\u202e]", html)


def test_bodies_can_be_kept_out_of_all_pages_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scan(monkeypatch, recorded("id-7", "secret-body", {"tenant": attribute("secret-tenant")}))
    with visiting(shows_bodies=False, template=project(tmp_path)) as guest:
        text = guest.page("/message/id-7?view=raw&all=1")
        assert ("app.CardDeclined" in text, "secret" in text) == (True, False)
        for part in ("body", "body?view=raw", "body.txt", "event.json", "test", "test.py"):
            answer = guest.get(f"/message/id-7/{part}")
            assert (answer.status, "secret" in answer.text) == (403, False), part


def test_the_files_have_the_exact_body_and_the_event_and_test_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scan(monkeypatch, recorded("a/b id", HOSTILE))
    path = "/message/a%2Fb%20id"
    with visiting(template=project(tmp_path)) as guest:
        body, test = guest.get(f"{path}/body.txt"), guest.get(f"{path}/test.py")
        event = json.loads(guest.page(f"{path}/event.json"))
        assert "Download test_a_b_id.py" in guest.page(f"{path}/test")
    assert (body.text, body.headers["Content-Type"]) == (HOSTILE, "text/plain; charset=utf-8")
    assert body.headers["Content-Disposition"] == 'attachment; filename="a_b_id.txt"'
    assert event["Records"][0]["body"] == HOSTILE
    assert test.headers["Content-Disposition"] == 'attachment; filename="test_a_b_id.py"'
    compile(test.text, "test.py", "exec")
    assert "def test_dead_letter_a_b_id(monkeypatch):" in test.text


def test_without_a_template_or_the_body_the_page_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch, recorded("id-7"))
    with visiting() as guest:
        html = guest.page("/message/id-7/test")
    assert "A test needs a template, to find the handler: name one (--template FILE)." in html
    assert ("eventSourceARN" in html, "test.py" in html) == (True, False)
    scan(monkeypatch, recorded("id-7", "secret"), most_bytes=10)
    with visiting() as guest:
        html = guest.page("/message/id-7")
        assert guest.get("/message/id-7/body.txt").status == 404
    assert "are not in memory any more" in html
    assert "app.CardDeclined: no" in html


def test_a_search_in_logs_is_a_post_that_shows_the_story_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch, recorded("id-7"))
    with visiting() as guest:
        assert guest.get("/message/id-7/story").status == 405
        answer = guest.post("/message/id-7/story")
    assert answer.status in {400, 502}
    assert "Logs are searched by stack: start tarry console with --stack NAME." in answer.text
    event = StoryEvent(NOW, State.WAITING_RETRY, origin="orders", attempt=1, delay=30, error=f"app.Timeout: {HOSTILE}")
    story = Story("id-7", (event,), "CloudWatch Logs", NOW, is_whole=False, notes=("Lines may be missing.",))
    answers = [
        FoundStory(story, "Scanned 1 GB", is_complete=True),
        FoundStory(None, "Scanned 2 GB", is_complete=True, not_found=f"no line names {HOSTILE}"),
    ]
    wanted: list[str] = []

    def search(console: object, message_id: str) -> FoundStory:
        wanted.append(message_id)
        return answers.pop(0)

    monkeypatch.setattr(page, "searched", search)
    with visiting(stack="shop") as guest:
        assert "Search the logs of shop" in guest.page("/message/id-7-1")
        found = guest.post("/message/id-7-1/story").text
        unknown = guest.get("/message/other-id")
        part = guest.post("/message/other-id/story", HX_Request="true").text
    assert "Search the logs" not in found
    for text in (
        "Scanned 1 GB",
        "From CloudWatch Logs. Lines may be missing.",
        "Timeout: \\x1b[31m\\u202e&lt;script&gt;",
    ):
        assert text in found
    assert (unknown.status, "Search the logs of shop" in unknown.text) == (404, True)
    assert ("<html" in part, "Nothing was found. Scanned 2 GB" in part) == (False, True)
    assert "no line names \\x1b[31m\\u202e&lt;script&gt;" in part
    assert wanted == ["id-7", "other-id"]  # the stable id, if it is known


# the story of its record


def test_the_record_tells_when_the_message_was_sent_failed_and_dead_lettered() -> None:
    story = story_of_record(recorded("id-1"), NOW)
    assert story is not None
    found = [(str(each.state), datetime.fromtimestamp(each.at, UTC).strftime("%H:%M:%S"), each.attempt, each.delay)
            for each in story.events]  # fmt: skip
    assert found == [
        ("READY", "08:00:00", None, None),
        ("WAITING_RETRY", "08:03:00", 1, 30.0),
        ("WAITING_RETRY", "08:09:00", 2, 60.0),
        ("DEAD_LETTERED", "08:21:40", 5, None),
    ]
    assert story.queues == ["orders", "orders-dlq"]
    assert story.summary.startswith("Dead-lettered after 5 attempts in 21 min 40 s. First failure 08:03:00 UTC: Gate")
    assert story.notes == ("2 attempts have no entry in the record: retries in place write none.",)
    assert not story.is_whole


def test_the_attempts_of_a_message_that_was_sent_back_are_counted_from_then_on_in_its_story() -> None:
    """The failure record counts all of them, which its facts say."""
    entries = [(1, "08:00:30"), (2, "08:01:00"), (1, "08:10:00"), (2, "08:11:00"), (3, "08:21:40.112")]
    history = [{"attempt": number, "at": f"2026-11-21T{at}Z", "error": "app.E: no"} for number, at in entries]
    dead_letter = recorded("id-1", history=history, attempts=5)
    story = story_of_record(dead_letter, NOW)
    assert story is not None
    assert story.summary.startswith("Dead-lettered after 3 attempts")
    assert story.notes == ()  # each attempt has an entry
    facts = dict(facts_of(dead_letter))["dead-lettered"]
    assert facts.endswith("exhausted, after 5 attempts in all, 3 of them since it was last sent back")


def test_without_a_record_or_its_times_there_is_no_story() -> None:
    assert story_of_record(moved("m"), NOW) is None
    assert story_of_record(recorded("id-1", failed_at=None, history=[]), NOW) is None


def test_entries_with_wrong_values_are_left_out() -> None:
    entries = [{"at": "soon", "attempt": 1}, {"attempt": 2}, {"at": "2026-11-21T08:09:00Z", "attempt": True}]
    story = story_of_record(recorded("id-1", history=entries, sent="never"), NOW)
    assert story is not None
    assert [each.attempt for each in story.events][-2:] == [None, 5]


# the body: formatted, raw, cut, and with all characters visible

DEEP = "[" * 100_000 + "]" * 100_000


def shown(body: str, view: str = FORMATTED, *, all_of_it: bool = True) -> str:
    return "".join(body_view(body, view, all_of_it=all_of_it).blocks)


def test_json_is_formatted_without_changing_a_character_of_its_values() -> None:
    body = '{"a":[1,{"b":"x\\\\\\"y"}],"c":{},"d":[ ],"n":12345678901234567890.10,"n":1e999,"t":"\\u202e {[,:]}"}'
    text = shown(body)
    assert text.splitlines() == [
        "{",
        '  "a": [',
        "    1,",
        "    {",
        '      "b": "x\\\\\\"y"',
        "    }",
        "  ],",
        '  "c": {},',
        '  "d": [],',
        '  "n": 12345678901234567890.10,',
        '  "n": 1e999,',
        '  "t": "\\u202e {[,:]}"',
        "}",
    ]
    plain = json.dumps({"a": [1, 2.5, {"b": [True, None]}], "c": "é"}, indent=2, ensure_ascii=False)
    assert shown(json.dumps(json.loads(plain))) == plain.replace("é", "\\u00e9")
    assert shown(body, RAW) == body


@pytest.mark.parametrize("body", ["text", "12", '"text"', "{'a': 1}", "[1,", "{} {}", "", " "])
def test_other_bodies_are_shown_as_they_are(body: str) -> None:
    view = body_view(body)
    assert (view.view, view.is_json, "".join(view.blocks), view.note) == (RAW, False, body, "")


def test_characters_that_could_deceive_are_shown_as_escapes() -> None:
    view = body_view("a\x1b[2J\u202eb\u2066\u00a0\x00\n\t漢é\ud800")
    assert "".join(view.blocks) == "a\\x1b[2J\\u202eb\\u2066\\xa0\\x00\n\t漢é\\ud800"
    assert view.note == "Control characters and marks of direction are shown as escapes, such as \\u202e."


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (DEEP, "The brackets are nested too deeply to format the body."),
        ("[" * 150 + ",".join("1" * 400_000) + "]" * 150, "The JSON is nested too deeply to format it."),
    ],
)
def test_brackets_nested_too_deeply_are_shown_raw(body: str, note: str) -> None:
    view = body_view(body, all_of_it=True)
    assert (view.view, view.note, "".join(view.blocks)) == (RAW, note, body)


@pytest.mark.parametrize(
    "body", ["x" * 200_000, "\n" * 200_000, DEEP, f"[{','.join('1' * 100_000)}]", "\u202e" * 60_000]
)
def test_of_a_long_body_a_first_part_is_shown_until_all_is_asked_for(body: str) -> None:
    assert not body_view(body[:20_000].replace("\n", " "), RAW).is_cut
    assert body_view(body[:20_001].replace("\n", " "), RAW).is_cut
    view = body_view(body)
    assert view.is_cut
    assert view.characters == len(body)
    text = "".join(view.blocks)
    assert text.count("\n") < FIRST_LINES
    assert len(text) <= FIRST_CHARACTERS * len("\\u202e")
    whole = body_view(body, RAW, all_of_it=True)
    assert not whole.is_cut
    assert max(map(len, whole.blocks)) <= FIRST_CHARACTERS
    assert max(block.count("\n") for block in whole.blocks) <= FIRST_LINES
    assert "".join(whole.blocks).replace("\\u202e", "\u202e") == body
