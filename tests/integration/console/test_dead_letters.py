"""The pages of dead letters against a served SQS: scans, retries, edits, removals, and what goes wrong."""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tarry import failed
from tarry.tools.console.access import WatchedQueue
from tarry.tools.console.dead_letters.pages import listing
from tarry.tools.simulator.sqs import SqsError
from tests.consoles import Visitor, console_at, visiting
from tests.integration.failed.test_audit import disk_full
from tests.served import served
from tests.shop import ServedShop
from tests.unit.failed.dead_letters import envelope_of

PATIENCE_SECONDS = 60.0
PAGE = "/dead-letters/orders-dlq"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedShop]:
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)  # the model has all messages on one server
    with served() as sqs:
        yield ServedShop(sqs, tmp_path)


def visited(shop: ServedShop, work: Callable[[Visitor], Awaitable[None]], **settings: Any) -> None:
    """Run ``work`` with a session of a console that may write."""

    async def main() -> None:
        given = {"can_write": True, "keepalive": 3.0, "audit_path": shop.folder / "audit.jsonl"} | settings
        async with visiting(console_at(shop.sqs.url, [WatchedQueue("orders", "orders-dlq")], **given)) as visitor:
            await work(visitor)

    asyncio.run(main())


async def ended(visitor: Visitor, number: int) -> str:
    """Return the text of the page of a job, once it has ended."""
    ends_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while 'id="stop-' in (answer := await visitor.get(f"/jobs/{number}")).text:
        assert asyncio.get_running_loop().time() < ends_at, answer.text
        await asyncio.sleep(0.02)
    return text_of(answer.text)


async def started(visitor: Visitor, path: str, fields: dict[str, Any] | None = None) -> int:
    """Start a job; return its number."""
    answer = await visitor.post(PAGE + path, fields)
    assert answer.status == 303, text_of(answer.text)
    if path == "/scan":
        found = re.search(r'href="/jobs/(\d+)', (await visitor.get("/jobs")).text)
    else:
        found = re.fullmatch(r"/jobs/(\d+)", answer.headers["Location"])
    assert found
    return int(found[1])


async def done(visitor: Visitor, path: str, fields: dict[str, Any] | None = None) -> str:
    return await ended(visitor, await started(visitor, path, fields))


def text_of(html: str) -> str:
    """Return the text of a page, with single spaces."""
    html = re.sub(r"</?(?:strong|code|a|kbd|time)\b[^>]*>", "", html.partition("<main")[2] or html)
    without = re.sub(r"<[^>]+>", " ", html)
    return " ".join(unescape(without).split())


def delivery_ids(html: str) -> list[str]:
    return re.findall(r'name="id" value="([^"]+)"', html)


def audit_lines(shop: ServedShop) -> list[dict[str, Any]]:
    """Return the last lines of the audited runs."""
    path = shop.folder / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert len(lines) == 2 * len({line["run"] for line in lines})  # each has begun
    return [line for line in lines if "ended_at" in line]


@contextmanager
def sqs_answers(shop: ServedShop, answer: Callable[[str, dict[str, Any]], None]) -> Iterator[None]:
    """Call ``answer`` before each request to the model; what it raises is the answer."""
    sqs, before = shop.sqs.sqs, shop.sqs.sqs.call

    def call(operation: str, parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        answer(operation, parameters)
        return before(operation, parameters, *args, **kwargs)

    sqs.call = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        sqs.call = before  # type: ignore[method-assign]


def test_dead_letters_are_scanned_grouped_filtered_tried_out_retried_and_audited(shop: ServedShop) -> None:
    shop.put(30)
    shop.put(12, first=30, type="app.Timeout", message="<script>alert(1)</script>\x1b[31m\u202e", fingerprint="t0")

    async def work(visitor: Visitor) -> None:
        before = await visitor.get(PAGE)
        assert "Not scanned yet. The queue has about 42 messages." in text_of(before.text)
        assert (await visitor.get(f"{PAGE}/list")).status == 409
        assert "42 found" in await done(visitor, "/scan")
        assert shop.in_flight() == 0
        groups = await visitor.get(PAGE)
        assert "<script>alert" not in groups.text
        text = text_of(groups.text)
        assert "30 app.CardDeclined: no fingerprint 9f2c61d0a4be 2026-11-21 08:21 UTC" in text
        assert r"12 app.Timeout: <script>alert(1)</script>\x1b[31m\u202e fingerprint t0" in text
        for by in ("error", "type", "queue", "reason"):
            assert (await visitor.get(f"{PAGE}?by={by}")).status == 200
        assert (await visitor.get(f"{PAGE}?by=body")).status == 400

        chosen = "where=type+%3D+app.Timeout&where=body.id+%3E%3D+34"
        listed = await visitor.get(f"{PAGE}/list?{chosen}")
        assert len(delivery_ids(listed.text)) == 8
        assert "Retry all 8 that match" in text_of(listed.text)
        wrong = await visitor.get(f"{PAGE}/list?{chosen}&where=typ+%3D+x")
        assert wrong.status == 400
        assert "invalid condition 'typ = x' at column 1: unknown field 'typ'" in text_of(wrong.text)
        assert 'value="typ = x"' in wrong.text  # what was typed is not lost
        assert "body.id &gt;= 34" in wrong.text  # nor the filters that parse
        assert not delivery_ids(wrong.text)
        assert "Retry all" not in text_of(wrong.text)  # of messages that the filter would have left out
        typing = text_of((await visitor.get(f"{PAGE}/condition?{chosen}&where=attempts+%3D+5", HX_Request="1")).text)
        assert typing.startswith("8 of 42 dead letters match; Enter to show.")
        typing = text_of((await visitor.get(f"{PAGE}/condition?where=message+%7E+%28a%2B%29%2B%24")).text)
        assert "Enter to compare 42 dead letters" in typing  # "message ~ (a+)+$" could block every page

        form = {"where": ["type = app.Timeout", "body.id >= 34"]}
        preview = text_of((await visitor.get(f"{PAGE}/retry?{chosen}")).text)
        assert "Retry 8 dead letters of orders-dlq where type = app.Timeout and body.id >= 34" in preview
        assert "8 messages are sent to orders, and then deleted from orders-dlq." in preview
        assert "tarry failed retry --queue orders-dlq --where 'type = app.Timeout' --where 'body.id >= 34'" in preview
        tried = await done(visitor, "/retry/dry-run", form)
        assert "done 8 would be retried" in tried
        assert "Retry 8 now" in tried
        assert "8 dead letters would be sent to orders." in tried
        assert (len(shop.bodies("orders")), audit_lines(shop)) == (0, [])
        shop.put(1, first=60, type="app.Timeout", fingerprint="t0", failed_at="2099-01-01T00:00:00Z")  # after the scan

        result = await done(visitor, "/retry/start", form)
        assert "done 8 retried" in result
        assert "not in the queue any more" not in result
        assert sorted(shop.bodies("orders")) == list(range(34, 42))
        assert "34 dead letters." in text_of((await visitor.get(PAGE)).text)
        again = await done(visitor, "/retry/start", form)
        assert "No dead letter" not in again  # the scan has none either: nothing was expected
        [line] = audit_lines(shop)
        assert (line["command"], line["from"]) == ("tarry failed retry", "tarry console")
        assert line["outcomes"] == {"retried": 8}
        assert (line["where"], line["via"]) == (form["where"], "queue")
        assert "tarry failed retry" in text_of((await visitor.get("/audit")).text)

    visited(shop, work)


def test_dead_letters_that_are_selected_are_removed_into_an_archive_from_which_they_can_be_restored(
    shop: ServedShop,
) -> None:
    """An empty queue says that it was scanned; the buttons for all are apart."""

    archives: list[Path] = []

    async def work(visitor: Visitor) -> None:
        assert "the job goes on" not in await done(visitor, "/scan")
        page = text_of((await visitor.get(PAGE)).text)
        assert ("Scanned" in page, "0 dead letters" in page, "Scan again" in page) == (True, True, True)
        shop.put(12)
        await done(visitor, "/scan")
        for path in (PAGE, f"{PAGE}/list"):
            text = (await visitor.get(path)).text
            assert text.index("Retry all") < text.index("</table>") < text.index("Remove all")
        chosen = delivery_ids(text)[:3]
        preview = await visitor.post(f"{PAGE}/remove", {"id": chosen})
        assert "Remove 3 dead letters of orders-dlq that you selected" in text_of(preview.text)
        assert "3 messages of orders-dlq are written to a new archive in" in text_of(preview.text)
        result = await done(visitor, "/remove/start", {"id": chosen})
        assert "done 3 removed" in result
        archive = re.search(r"To restore them: tarry failed restore (\S+) --queue orders-dlq --endpoint-url", result)
        assert archive
        assert len(shop.bodies("orders-dlq")) == 9
        with visitor_world(shop):
            archives.append(Path(archive[1]))
            restored = list(failed.restore(archives[0], failed.find("orders-dlq")))
        assert [each.outcome for each in restored] == ["restored"] * 3
        assert sorted(shop.bodies("orders-dlq")) == list(range(12))
        assert audit_lines(shop)[0]["archive"] == archive[1]
        audit = await visitor.get("/audit")
        assert "Removed 3 dead letters, chosen by id" in text_of(audit.text)
        await done(visitor, "/scan")
        of_one = await visitor.get(f"/message/{chosen[0]}")  # also by its delivery id, which the audit has not
        assert "Removed 3 dead letters, chosen by id; this message was among them." in text_of(of_one.text)
        [anchor] = re.findall(r'href="/audit#(run-[^"]+)"', of_one.text)
        assert f'id="{unquote(anchor)}"' in audit.text
        gone = await done(visitor, "/remove/start", {"id": chosen})  # their delivery ids are gone
        assert "3 failed" in gone
        assert "not found in orders-dlq" in gone

    visited(shop, work)
    assert archives[0].stat().st_mode & 0o777 == 0o600


@contextmanager
def visitor_world(shop: ServedShop) -> Iterator[None]:
    from tarry.world import World, use

    with use(World(client_factory=lambda: shop.sqs.client)):
        yield


def test_the_console_and_a_command_on_one_queue_do_each_message_once(shop: ServedShop) -> None:  # SPEC M3, M6
    """The job notes how many of the scan another one has taken."""
    shop.put(150)
    path = shop.folder / "archive.jsonl"

    def remove() -> None:
        with visitor_world(shop), failed.opened("orders-dlq") as inspection:
            archive = failed.ArchiveFile(path)
            deleted.extend(failed.remove(inspection, failed.select(everything=True), archive=archive))
            archive.close()

    deleted: list[failed.Result] = []
    pages: list[str] = []

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        both = threading.Thread(target=remove)
        number = await started(visitor, "/retry/start", {"all": "1"})
        both.start()
        pages.append(await ended(visitor, number))
        await asyncio.to_thread(both.join)

    visited(shop, work)
    retried = sorted(shop.bodies("orders"))
    assert {each.outcome for each in deleted} <= {"deleted"}
    assert sorted([*retried, *(int(each.id[3:]) for each in deleted)]) == list(range(150))
    assert f"done {len(retried)} retried" in pages[0]
    assert not deleted or f"{len(deleted)} dead letter" in pages[0]
    assert shop.bodies("orders-dlq") == []


@pytest.mark.parametrize(
    ("action", "syncs", "text"),
    [
        ("retry", 1, "audit.jsonl cannot be written: No space left on device; nothing was changed"),
        (
            "remove",
            6,
            ".jsonl cannot be written: No space left on device; nothing more is removed; make room on its disk, or use "
            "tarry failed remove --archive FILE in a terminal",
        ),
    ],
)
def test_on_a_full_disk_a_job_fails_and_removes_only_what_is_archived(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch, action: str, syncs: int, text: str
) -> None:  # SPEC M6
    shop.put(90)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        monkeypatch.setattr("tarry.failed.journal.os.fsync", disk_full(syncs))
        pages.append(await done(visitor, f"/{action}/start", {"all": "1"}))

    pages: list[str] = []
    visited(shop, work, state=shop.folder)
    [page] = pages
    assert (" dead letters of orders-dlq failed " in page, text in page) == (True, True), page
    archived = [json.loads(line) for path in shop.folder.rglob("removed/*.jsonl") for line in path.open()]
    removed = {json.loads(line["record"]["body"])["id"] for line in archived if "record" in line}
    assert (set(range(90)) - {*shop.bodies("orders-dlq")} <= removed, shop.bodies("orders")) == (True, [])
    assert (len(removed) > 0) == (syncs > 2)
    assert shop.in_flight() == 0


def test_a_body_is_edited_as_the_command_does_it(shop: ServedShop) -> None:
    shop.put(5)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        page = await visitor.get(f"{PAGE}/edit?id=id-3")
        assert "The message is sent to orders with this body" in text_of(page.text)
        typing = await visitor.post(f"{PAGE}/edit/changes", {"id": "id-3", "body": '{"id": 33}'})
        assert text_of(typing.text) == '{ - "id": 3 + "id": 33 }'
        wrong = await visitor.post(f"{PAGE}/edit/start", {"id": "id-3", "body": '{"id": 33'})
        assert wrong.status == 400
        assert "the body was JSON, the edited body is not" in text_of(wrong.text)
        assert "{&#34;id&#34;: 33</textarea>" in wrong.text  # what was typed is not lost
        same = await visitor.post(f"{PAGE}/edit/start", {"id": "id-3", "body": '{"id": 3}'})
        assert "You did not change the body." in text_of(same.text)
        assert "done 1 retried" in await done(visitor, "/edit/start", {"id": "id-3", "body": '{"id":\r\n33}'})
        assert shop.bodies("orders") == [33]
        [sent] = shop.sqs.on_the_loop(lambda: [each.body for each in shop.sqs.sqs.peek("orders")])
        assert sent == '{"id": 33}'  # on one line, as it was
        assert audit_lines(shop)[0]["outcomes"] == {"retried": 1, "edited": 1}
        assert (await visitor.get(f"{PAGE}/edit?id=id-3")).status == 404

    visited(shop, work)


def test_bodies_of_1_mib_and_with_100_000_nested_brackets_are_filtered_and_edited(shop: ServedShop) -> None:
    large = json.dumps({"id": 1, "text": "</textarea><script>" + "x" * 1_000_000})
    nested = "[" * 100_000
    for body in (large, nested):
        shop.sqs.client.send_message(QueueUrl=f"{shop.sqs.url}/123456789012/orders-dlq", MessageBody=body)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        page = await visitor.get(f"{PAGE}/list?where=body.id+%3D+1")
        [delivery_id] = delivery_ids(page.text)
        assert len(page.text) < 20_000
        assert len(delivery_ids((await visitor.get(f"{PAGE}/list?where=body+~+%5C%5B%5C%5B")).text)) == 1
        page = await visitor.get(f"{PAGE}/edit?id={delivery_id}")
        assert "</textarea><script>" not in page.text
        form = {"id": delivery_id, "body": large.replace("id", "ID")}
        assert "too long to show its changes" in (await visitor.post(f"{PAGE}/edit/changes", form)).text
        refused = await visitor.post(f"{PAGE}/edit/start", form | {"body": large + "y" * 60_000})
        assert (refused.status, "the edited body is not" in refused.text) == (400, True)

    visited(shop, work)


def test_nothing_that_the_console_does_holds_messages_longer_than_keepalive(shop: ServedShop) -> None:
    """The command would hold 200 in flight for 4 seconds, a second for each 50."""
    shop.put(190)
    shop.put(10, first=190, fingerprint="t0")
    asked: set[float] = set()

    def look(operation: str, parameters: dict[str, Any]) -> None:
        asked.update(each.get("VisibilityTimeout", 0) for each in parameters.get("Entries", [parameters]))

    async def work(visitor: Visitor) -> None:
        with sqs_answers(shop, look):
            assert "200 found" in await done(visitor, "/scan")
            page = await visitor.get(f"{PAGE}/list?where=fingerprint+%3D+t0")
            edited, *chosen = delivery_ids(page.text)
            for path in (f"{PAGE}?by=error", f"/message/{edited}"):
                assert (await visitor.get(path)).status == 200
            assert "done 2 removed" in await done(visitor, "/remove/start", {"id": chosen[:2]})
            assert "done 1 retried" in await done(visitor, "/edit/start", {"id": edited, "body": '{"id": 0}'})
            form = {"where": ["fingerprint = t0"], "canary": "1", "within": "1s"}
            assert "7 would be retried" in await done(visitor, "/retry/dry-run", form)
            assert "done 7 retried" in await done(visitor, "/retry/start", form)
        assert max(asked) == 3

    visited(shop, work)


def test_the_groups_and_the_list_take_the_numbers_of_the_overview_once_it_was_read_after_the_scan(
    shop: ServedShop,
) -> None:
    """No request to SQS delays them then."""
    shop.put(12)
    looked: list[str] = []

    async def look_ups(visitor: Visitor, path: str) -> int:
        looked.clear()
        assert (await visitor.get(path)).status == 200
        return looked.count("ListDeadLetterSourceQueues")  # the overview makes none

    async def work(visitor: Visitor) -> None:
        with sqs_answers(shop, lambda operation, _: looked.append(operation)):
            await done(visitor, "/scan")
            ends_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
            while await look_ups(visitor, PAGE):
                assert asyncio.get_running_loop().time() < ends_at
                await asyncio.sleep(0.02)
            assert await look_ups(visitor, f"{PAGE}/list") == 0
            assert "The queue has about 12 messages." in text_of((await visitor.get(PAGE)).text)
            await done(visitor, "/remove/start", {"where": "body.id < 5"})
            assert "The queue has about 7 messages." in text_of((await visitor.get(PAGE)).text)

    visited(shop, work)


def test_canaries_that_come_back_end_a_retry(shop: ServedShop) -> None:
    shop.put(8)

    def dead_letter_again(operation: str, parameters: dict[str, Any]) -> None:
        """Dead-letter what a retry sends, in a moment."""
        if operation == "SendMessageBatch" and parameters["QueueUrl"].endswith("/orders"):
            index = json.loads(parameters["Entries"][0]["MessageBody"])["id"]
            threading.Timer(0.05, shop.put, (1, index)).start()

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        form = {"all": "1", "canary": "1", "within": "20s"}
        preview = text_of((await visitor.post(f"{PAGE}/retry", form)).text)
        assert (
            "1 dead letter is sent first and watched. If one comes back to orders-dlq, no others are sent." in preview
        )
        with sqs_answers(shop, dead_letter_again):
            result = await done(visitor, "/retry/start", form)
        assert "stopped: messages came back 1 retried" in result
        assert "1 of 1 canaries came back to orders-dlq: no others were retried" in result
        assert "Scan orders-dlq to see why it failed this time. Scan s" in result
        assert "not in the queue any more" not in result
        assert "came back to orders-dlq since this scan" in text_of((await visitor.get(PAGE)).text)
        assert len(shop.bodies("orders")) == 1
        assert "canaries came back" in audit_lines(shop)[0]["came_back"]
        wrong = await visitor.post(f"{PAGE}/retry/start", {"all": "1", "canary": "x"})
        assert (wrong.status, 'value="x"' in wrong.text) == (400, True)
        wrong = await visitor.post(f"{PAGE}/retry", {"all": "1", "canary": "9" * 5_000})
        assert (wrong.status, "The number of canaries must be a whole number" in text_of(wrong.text)) == (400, True)

    visited(shop, work)


def test_a_second_browser_sees_the_job_that_runs_and_a_stopped_one_releases_the_others(shop: ServedShop) -> None:
    shop.put(200)
    enough = threading.Event()

    def hold(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "SendMessageBatch" and len(shop.sqs.sqs.peek("orders")) >= 20:
            enough.set()
            raise SqsError("RequestThrottled", "slow down")

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        with sqs_answers(shop, hold):
            number = await started(visitor, "/retry/start", {"all": "1", "rate": "10000"})
            assert await asyncio.to_thread(enough.wait, PATIENCE_SECONDS)
            for path, fields in (("/scan", {}), ("/retry/start", {"all": "1"}), ("/remove/start", {"all": "1"})):
                other = await visitor.post(PAGE + path, fields)
                assert other.status == 409
                assert "A retry runs on orders-dlq" in text_of(other.text)
                assert f'href="/jobs/{number}"' in other.text
            assert (await visitor.post(f"/jobs/{number}/stop")).status == 303
        result = await ended(visitor, number)
        assert re.search(
            r"stopped \d+ retried .* Stopped: \d+ dead letters of the scan are left in orders-dlq\.", result
        )
        assert shop.in_flight() == 0
        left, sent = shop.at_one_moment()
        assert sorted(left + sent) == list(range(200))
        assert 0 < len(sent) < 200
        assert (audit_lines(shop)[0]["stopped"], audit_lines(shop)[0]["outcomes"]["retried"]) == (True, len(sent))

    visited(shop, work)


def test_with_an_sqs_that_throttles_a_job_ends_and_one_that_never_answers_fails_with_what_was_done(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("requests", "sending", "removing"):
        monkeypatch.setattr(f"tarry.failed.{module}.wait", lambda _: None)
    shop.put(60)
    counts = {"ReceiveMessage": 0, "SendMessageBatch": 0}

    def sometimes(operation: str, parameters: dict[str, Any]) -> None:
        if operation in counts:
            counts[operation] += 1
            if counts[operation] % 3 == 0:
                raise SqsError("RequestThrottled", "slow down")

    def never(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "ReceiveMessage" and len(shop.sqs.sqs.peek("orders-dlq")) < 30:
            raise SqsError("RequestThrottled", "slow down")

    async def work(visitor: Visitor) -> None:
        with sqs_answers(shop, sometimes):
            assert "done 60 found" in await done(visitor, "/scan")
            assert "done 20 retried" in await done(visitor, "/retry/start", {"where": "body.id < 20"})
        with sqs_answers(shop, never):
            result = await done(visitor, "/remove/start", {"all": "1"})
            assert "failed 40 removed" in result or "failed 20 removed" in result
            assert "RequestThrottled" in result
            scan = await done(visitor, "/scan")
            assert "RequestThrottled" in scan
        assert shop.in_flight() == 0

    visited(shop, work)


def test_what_changes_between_a_preview_and_its_start_is_an_answer_in_words(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RECENT_SECONDS", -1)  # else pages may have numbers from before the deletion
    shop.put(4)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        shop.sqs.client.purge_queue(QueueUrl=f"{shop.sqs.url}/123456789012/orders-dlq")
        result = await done(visitor, "/retry/start", {"all": "1"})
        assert "No dead letter matches any more: retried or removed since the scan, or in flight" in result
        assert audit_lines(shop) == []
        assert (await visitor.get("/dead-letters/nope")).status == 404
        assert (await visitor.get("/jobs/99")).status == 404
        shop.sqs.client.delete_queue(QueueUrl=f"{shop.sqs.url}/123456789012/orders-dlq")
        for answer in (await visitor.get(PAGE), await visitor.post(f"{PAGE}/scan"), await visitor.get(f"{PAGE}/list")):
            assert answer.status == 404
            assert "The dead-letter queue is gone: queue 'orders-dlq' does not exist" in text_of(answer.text)
        assert "does not exist" in text_of((await visitor.get("/dead-letters")).text)

    visited(shop, work)


def test_a_read_only_console_scans_and_changes_nothing_and_one_without_bodies_compares_none(shop: ServedShop) -> None:
    shop.put(2)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        page = await visitor.get(f"{PAGE}/retry?all=1")
        assert "This console is read-only. Start it with --write." in text_of(page.text)
        assert "done 2 would be retried" in await done(visitor, "/retry/dry-run", {"all": "1"})
        for path in ("/retry/start", "/remove/start", "/edit/start"):
            answer = await visitor.post(PAGE + path, {"all": "1", "id": "id-1", "body": "x"})
            assert (answer.status, "This console is read-only" in answer.text) == (403, True)
        for path in ("/list?where=body.id+%3D+1", "/retry?where=body.id+%3D+1"):
            answer = await visitor.get(PAGE + path)
            assert (answer.status, "this console shows no bodies" in answer.text) == (400, True)
        beside = await visitor.get(f"{PAGE}/list?where=typ+%3D+x&where=body.id+%3D+1")
        assert (beside.status, len(delivery_ids(beside.text))) == (400, 0)  # the second is not applied either
        typing = await visitor.get(f"{PAGE}/condition?where=body.id+%3D+1&where=attempts+%3D+5")
        assert "2 of 2 dead letters match" in text_of(typing.text)
        assert (await visitor.get(f"{PAGE}/edit?id=id-1")).status == 403
        assert (await visitor.post(f"{PAGE}/retry", {})).status == 400  # nothing is selected
        assert sorted(shop.bodies("orders-dlq")) == [0, 1]

    visited(shop, work, can_write=False, shows_bodies=False)


def test_one_button_scans_all_queues_with_messages(shop: ServedShop) -> None:
    shop.put(3)
    shop.sqs.queue("refunds-dlq")
    shop.sqs.queue("empty-dlq")
    record = {"DataType": "String", "StringValue": json.dumps(envelope_of("{}", fingerprint="of-refunds"))}
    url = shop.sqs.client.get_queue_url(QueueName="refunds-dlq")["QueueUrl"]
    shop.sqs.client.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes={"Tarry": record})
    names = ("orders-dlq", "refunds-dlq", "empty-dlq")

    async def work() -> None:
        console = console_at(shop.sqs.url, [WatchedQueue(name.removesuffix("-dlq"), name) for name in names])
        async with visiting(console) as visitor:
            assert "Scan all 2 queues with messages" in text_of((await visitor.get("/dead-letters")).text)
            answer = await visitor.post("/dead-letters")
            assert (answer.status, answer.headers["Location"]) == (303, "/dead-letters")
            assert "3 found" in await ended(visitor, 1)
            assert "1 found" in await ended(visitor, 2)
            page = (await visitor.get("/dead-letters")).text
            assert "/dead-letters/refunds-dlq/list?where=fingerprint+%3D+of-refunds" in page
            text = text_of(page)
            assert "4 dead letters of the 2 scanned queues, by cause" in text
            assert "4 app.CardDeclined: no 3 in orders-dlq, 1 in refunds-dlq" in text
            assert (await visitor.get("/jobs/3")).status == 404

    asyncio.run(work())


def test_at_aws_all_of_a_queue_is_removed_only_if_its_name_is_typed(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    monkeypatch.setattr("tests.consoles.EndpointAccount.is_aws", True)
    monkeypatch.setattr("tests.consoles.EndpointAccount.identity", lambda _: "arn:aws:iam::123456789012:user/ada")
    shop.put(2)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        page = await visitor.get(f"{PAGE}/remove?all=1")
        assert "Type the name of the queue, orders-dlq" in text_of(page.text)
        for name in ("", "orders"):
            answer = await visitor.post(f"{PAGE}/remove/start", {"all": "1", "name": name})
            assert f"{name!r} is not orders-dlq: no dead letter was removed" in text_of(answer.text)
        assert len(shop.bodies("orders-dlq")) == 2
        assert "2 removed" in await done(visitor, "/remove/start", {"all": "1", "name": "orders-dlq"})

    visited(shop, work, state=shop.folder)
