"""The page of one message, and the files that it offers."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tarry.message.outcomes import State
from tarry.tools.console import message as page
from tarry.tools.story.events import Story, StoryEvent
from tarry.tools.story.searching import FoundStory
from tests.consoles import Visitor, console_at, visiting
from tests.scanned import HOSTILE, attribute, moved, project, recorded, scan
from tests.unit.failed.dead_letters import NOW

NOWHERE = "http://127.0.0.1:1"


def visited(work: Callable[[Visitor], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with visiting(console_at(NOWHERE, **settings)) as visitor:
            return await work(visitor)

    return asyncio.run(main())


def pages(*paths: str, **settings: Any) -> list[str]:
    """Return the pages, each of which must be there."""

    async def work(visitor: Visitor) -> list[str]:
        answers = [await visitor.get(path) for path in paths]
        assert {each.status for each in answers} == {200}, [each.text for each in answers]
        return [each.text for each in answers]

    found: list[str] = visited(work, **settings)
    return found


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_page_tells_why_a_message_failed_by_its_delivery_id_and_its_stable_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scan(monkeypatch, recorded("id-7", '{"order": 7}', {"tenant": attribute("north")}), moved("m-1", "plain"))
    one, other, without = pages("/message/id-7-1", "/message/id-7", "/message/m-1")
    text = text_of(one)
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
    assert text_of(other) == text
    assert '<svg class="picture" xmlns' in one
    assert "<style" not in one  # the security policy refuses it
    assert "no failure record (not dead-lettered by tarry)" in without
    assert "No times are known: this message has no failure record." in without


def test_nothing_in_a_message_is_more_than_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attributes = {"tenant": attribute(HOSTILE.replace("\x1b", ""))}
    hostile = recorded("id-7", HOSTILE, attributes, message=HOSTILE, said=HOSTILE, traceback=HOSTILE, function=HOSTILE,
                     history=[{"at": HOSTILE, "attempt": 1, "error": HOSTILE, "delay": HOSTILE}] * 2)  # fmt: skip
    scan(monkeypatch, hostile)
    paths = ("/message/id-7-1", "/message/id-7/body?view=raw", "/message/id-7/test")
    for html in pages(*paths, template=project(tmp_path)):
        assert "<script>document" not in html
        assert "<img" not in html
        assert not re.search("[\x1b\u202e]", html)
        assert "\\u202e" in html


def test_bodies_can_be_kept_out_of_all_pages_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scan(monkeypatch, recorded("id-7", "secret-body", {"tenant": attribute("secret-tenant")}))

    async def work(visitor: Visitor) -> None:
        page = await visitor.get("/message/id-7?view=raw&all=1")
        assert page.status == 200
        assert "app.CardDeclined" in page.text
        assert "secret" not in page.text
        for part in ("body", "body?view=raw", "body.txt", "event.json", "test", "test.py"):
            answer = await visitor.get(f"/message/id-7/{part}")
            assert (answer.status, "secret" in answer.text) == (403, False), part

    visited(work, shows_bodies=False, template=project(tmp_path))


def test_the_files_have_the_exact_body_and_the_event_and_test_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scan(monkeypatch, recorded("a/b id", HOSTILE))

    async def work(visitor: Visitor) -> None:
        path = "/message/a%2Fb%20id"
        body = await visitor.get(f"{path}/body.txt")
        assert (body.text, body.headers["Content-Type"]) == (HOSTILE, "text/plain; charset=utf-8")
        assert body.headers["Content-Disposition"] == 'attachment; filename="a_b_id.txt"'
        event = json.loads((await visitor.get(f"{path}/event.json")).text)
        assert event["Records"][0]["body"] == HOSTILE
        test = await visitor.get(f"{path}/test.py")
        assert test.headers["Content-Disposition"] == 'attachment; filename="test_a_b_id.py"'
        compile(test.text, "test.py", "exec")
        assert "def test_dead_letter_a_b_id(monkeypatch):" in test.text
        shown = await visitor.get(f"{path}/test")
        assert "Download test_a_b_id.py" in shown.text

    visited(work, template=project(tmp_path))


def test_without_a_template_the_event_is_shown_and_why_there_is_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch, recorded("id-7"))
    [html] = pages("/message/id-7/test")
    assert "A test needs a template, to find the handler: name one (--template FILE)." in html
    assert "eventSourceARN" in html
    assert "test.py" not in html


def test_a_message_whose_body_did_not_fit_into_memory_is_shown_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch, recorded("id-7", "secret"), most_bytes=10)

    async def work(visitor: Visitor) -> None:
        page = await visitor.get("/message/id-7")
        assert "are not in memory any more" in page.text
        assert "app.CardDeclined: no" in page.text
        assert (await visitor.get("/message/id-7/body.txt")).status == 404

    visited(work)


@pytest.mark.parametrize("path", ["/message/nosuch", "/message/nosuch/body", "/message/nosuch/test.py"])
def test_an_unknown_message_is_not_found(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    scan(monkeypatch)

    async def work(visitor: Visitor) -> None:
        answer = await visitor.get(path)
        assert (answer.status, "Scan" in answer.text) == (404, True)

    visited(work)


def test_logs_are_searched_only_by_a_post_and_only_for_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch, recorded("id-7"))

    async def work(visitor: Visitor) -> None:
        assert (await visitor.get("/message/id-7/story")).status == 405
        answer = await visitor.post("/message/id-7/story")
        assert answer.status == 502 or answer.status == 400
        assert "Logs are searched by stack: start tarry console with --stack NAME." in answer.text

    visited(work)


def test_pictures_are_styled_by_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    [css] = pages("/pictures.css")
    assert css.startswith(".picture {")
    assert css.count("{") == css.count("}")


def test_a_search_in_logs_shows_the_story_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch, recorded("id-7"))
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

    async def work(visitor: Visitor) -> None:
        assert "Search the logs of shop" in (await visitor.get("/message/id-7-1")).text
        found = await visitor.post("/message/id-7-1/story")
        assert "Search the logs" not in found.text
        assert "Scanned 1 GB" in found.text
        assert "From CloudWatch Logs. Lines may be missing." in found.text
        assert "Timeout: \\x1b[31m\\u202e&lt;script&gt;" in found.text
        unknown = await visitor.get("/message/other-id")
        assert (unknown.status, "Search the logs of shop" in unknown.text) == (404, True)
        nothing = await visitor.post("/message/other-id/story", None, **{"HX-Request": "true"})
        assert nothing.text.count("<html") == 0  # the part alone
        assert "Nothing was found. Scanned 2 GB" in nothing.text
        assert "no line names \\x1b[31m\\u202e&lt;script&gt;" in nothing.text
        assert wanted == ["id-7", "other-id"]  # the stable id, if it is known

    visited(work, stack="shop")
