"""Previews that say exactly what happens, and pages that one bad message or a slow SQS does not take away."""

import asyncio
import json
import re
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import failed
from tarry.failed.groups import as_value
from tarry.tools.console.access import THREADS, WatchedQueue
from tarry.tools.simulator.sqs import SqsError
from tests.consoles import EndpointAccount, Visitor, console_at, visiting
from tests.integration.console.test_dead_letters import (
    PAGE,
    PATIENCE_SECONDS,
    done,
    ended,
    shop,
    sqs_answers,
    started,
    text_of,
    visited,
)
from tests.shop import ServedShop
from tests.unit.failed.dead_letters import envelope_of

__all__ = ["shop"]


def previewed(html: str) -> dict[str, str]:
    """Return the hidden fields of a preview, as a browser sends them: with CR LF for each line end."""
    from html import unescape

    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', html)
    return {name: unescape(value).replace("\n", "\r\n") for name, value in found if name != "csrf"}


async def stopped_scan(visitor: Visitor, shop: ServedShop) -> int:
    """Scan a part of the queue; return the number of dead letters found."""
    enough = threading.Event()
    polls = iter(range(10_000))

    def slow(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "ReceiveMessage" and next(polls) >= 4:
            enough.set()
            raise SqsError("RequestThrottled", "slow down")

    with sqs_answers(shop, slow):
        number = await started(visitor, "/scan")
        assert await asyncio.to_thread(enough.wait, PATIENCE_SECONDS)
        await visitor.post(f"/jobs/{number}/stop")
    found = re.search(r"stopped (\d+) found", text := await ended(visitor, number))
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("verb", ["retry", "remove"])
def test_after_a_scan_that_was_stopped_only_dead_letters_that_it_has_found_are_changed(
    shop: ServedShop, verb: str
) -> None:
    shop.put(300)

    async def work(visitor: Visitor) -> None:
        count = await stopped_scan(visitor, shop)
        assert 0 < count < 300
        page = await visitor.get(f"{PAGE}/{verb}?all=1")
        assert "those that it has not found stay" in text_of(page.text)
        assert "The same in a terminal" not in page.text  # the command would take all
        assert f"{verb.capitalize()} {count}" in text_of(page.text)
        result = await done(visitor, f"/{verb}/start", previewed(page.text))
        assert f"done {count} {'retried' if verb == 'retry' else 'removed'}" in result
        assert len(shop.bodies("orders-dlq")) == 300 - count

    visited(shop, work)


@pytest.mark.parametrize("verb", ["retry", "remove"])
def test_a_preview_of_an_earlier_scan_starts_nothing_and_is_shown_anew(shop: ServedShop, verb: str) -> None:
    shop.put(3)

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        old = previewed((await visitor.get(f"{PAGE}/{verb}?all=1")).text)
        shop.put(2, first=3)
        await done(visitor, "/scan")
        again = await visitor.post(f"{PAGE}/{verb}/start", old)
        assert again.status == 409
        assert "The queue was scanned again since this page was opened, so nothing was started." in text_of(again.text)
        assert "5 messages" in text_of(again.text)
        assert len(shop.bodies("orders-dlq")) == 5
        assert re.search(r"done 5 re", await done(visitor, f"/{verb}/start", previewed(again.text)))

    visited(shop, work)


def test_dead_letters_with_the_same_id_are_retried_one_after_the_other_as_the_preview_says(shop: ServedShop) -> None:
    shop.put(3)
    shop.put(2)  # doubles

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        page = text_of((await visitor.get(f"{PAGE}/retry?all=1")).text)
        assert "3 messages are sent to orders" in page
        assert "2 messages stay in orders-dlq: another dead letter with the same id is sent first" in page
        for path, outcome in (("/retry/dry-run", "3 would be retried"), ("/retry/start", "3 retried")):
            result = await done(visitor, path, {"all": "1"})
            assert f"done {outcome}" in result
            assert "2 were skipped" in result
            assert "not in the queue any more" not in result
        assert (len(shop.bodies("orders")), len(shop.bodies("orders-dlq"))) == (3, 2)

    visited(shop, work)


LINES = "2 errors\n  amount: too low\r\n  name: \ud83d is half an emoji"


def test_texts_and_ids_with_lines_and_lone_surrogates_are_shown_and_retried(shop: ServedShop) -> None:
    """A form changes line ends to CR LF, and an address has no lone surrogates."""
    shop.put(2, message=LINES, type="E", reason="\udfff", fingerprint="[" * 5_000)
    shop.put(1, first=2, message="plain")
    surrogate = json.dumps(envelope_of("{}", "\ud800"))  # which no address can have
    attributes = {"Tarry": {"DataType": "String", "StringValue": surrogate}}
    message = {"QueueUrl": shop.sqs.sqs.url("orders-dlq"), "MessageBody": '{"id": 3}', "MessageAttributes": attributes}
    shop.sqs.on_the_loop(lambda: shop.sqs.sqs.call("SendMessage", message))

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        for by in ("fingerprint", "error", "type", "queue", "reason"):
            assert (await visitor.get(f"{PAGE}?by={by}")).status == 200
        for name in ("message", "reason", "fingerprint"):
            assert (await visitor.get(f"{PAGE}/condition?where={name}+%3D+")).status == 200
        groups = await visitor.get(f"{PAGE}?by=error")
        address = re.search(r'data-key="r" href="([^"]+)"', groups.text)
        assert address
        page = await visitor.get(address[1].replace("&amp;", "&"))
        assert "2 messages are sent to orders" in text_of(page.text)
        assert "done 2 retried" in await done(visitor, "/retry/start", previewed(page.text))
        assert sorted(shop.bodies("orders-dlq")) == [2, 3]
        listed = (await visitor.get(f"{PAGE}/list")).text
        for address in re.findall(r'href="(/message/[^"]+)"', listed):
            assert (await visitor.get(address)).status == 200

    visited(shop, work)
    assert as_value(LINES) == json.dumps(LINES)
    assert as_value("é = ü") == "é = ü"


def test_beside_a_queue_that_may_not_be_read_the_others_are_listed(shop: ServedShop) -> None:
    shop.sqs.queue("secret-dlq")

    def denies(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "GetQueueAttributes" and "secret-dlq" in parameters["QueueUrl"]:
            raise SqsError("AccessDenied", "not authorized to perform: sqs:getqueueattributes")

    async def main() -> None:
        queues = [WatchedQueue("orders", "orders-dlq"), WatchedQueue(None, "secret-dlq")]
        async with visiting(console_at(shop.sqs.url, queues)) as visitor:
            with sqs_answers(shop, denies):
                page = await visitor.get("/dead-letters")
        assert page.status == 200
        assert "AWS denies access" in text_of(page.text)
        assert 'href="/dead-letters/orders-dlq"' in page.text

    asyncio.run(main())


def test_pages_that_need_no_sqs_answer_while_it_hangs(shop: ServedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.put(1)
    goes_on, all_hang, hanging, find = threading.Event(), asyncio.Event(), list[str](), failed.find

    async def work(visitor: Visitor) -> None:
        loop = asyncio.get_running_loop()

        def hang(address: str) -> failed.DeadLetterQueue:
            hanging.append(address)
            if len(hanging) == THREADS:
                loop.call_soon_threadsafe(all_hang.set)
            goes_on.wait(PATIENCE_SECONDS)
            return find(address)

        await done(visitor, "/scan")
        monkeypatch.setattr("tarry.failed.find", hang)
        waiting = [asyncio.ensure_future(visitor.get(f"{PAGE}/remove?all=1")) for _ in range(12)]
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            await all_hang.wait()
        for path in ("/", "/audit", "/jobs", "/send", f"{PAGE}/condition?where=type+%3D+x"):
            async with asyncio.timeout(PATIENCE_SECONDS / 2):
                assert (await visitor.get(path)).status == 200
        goes_on.set()
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}

    visited(shop, work)


def test_without_bodies_neither_extra_nor_conditions_on_bodies_in_the_audit_are_shown(shop: ServedShop) -> None:
    shop.put(1, extra={"card": "SECRET-1"})  # type: ignore[arg-type]
    line = {"v": 1, "at": "2026-11-22T00:00:00Z", "command": "tarry failed retry", "outcomes": {"retried": 1}}
    audited = {**line, "where": ["body.card = SECRET-2", "type = app.E"]}
    (shop.folder / "audit.jsonl").write_text(json.dumps(audited) + "\n")

    async def without(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        pages = [await visitor.get("/message/id-0"), await visitor.get("/audit")]
        assert [(each.status, "SECRET" in each.text) for each in pages] == [(200, False)] * 2
        assert "type = app.E" in pages[1].text

    async def complete(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        assert "SECRET-1" in (await visitor.get("/message/id-0")).text
        assert "SECRET-2" in (await visitor.get("/audit")).text

    visited(shop, without, shows_bodies=False)
    visited(shop, complete)


def test_a_double_click_or_a_reload_sends_a_message_once(shop: ServedShop) -> None:
    async def work(visitor: Visitor) -> None:
        once = previewed((await visitor.get("/send")).text)["once"]
        form = {"queue": "orders", "body": '{"id": 1}', "once": once}
        answers = [*await asyncio.gather(visitor.post("/send", form), visitor.post("/send", form))]
        answers.append(await visitor.post("/send", form))
        assert len({re.search(r"/message/[\w-]+", each.text)[0] for each in answers}) == 1  # type: ignore[index]
        await visitor.post("/send", {**form, "body": '{"id": 2}'})  # edited after going back
        assert sorted(shop.bodies("orders")) == [1, 2]

    visited(shop, work)


def test_settings_that_the_preview_does_not_show_yet_start_nothing(shop: ServedShop) -> None:
    """The preview follows a field after some 400 ms; a quick click is faster."""
    shop.put(2)
    shop.sqs.queue("elsewhere")

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        fields = previewed((await visitor.get(f"{PAGE}/retry?all=1")).text)
        answer = await visitor.post(f"{PAGE}/retry/start", {**fields, "to": "elsewhere"})
        assert answer.status == 409
        assert "The settings were changed since this preview was shown, so nothing was started." in text_of(answer.text)
        assert "2 messages are sent to elsewhere" in text_of(answer.text)
        shown = previewed(answer.text)
        assert "done 2 retried" in await done(visitor, "/retry/start", {**shown, "to": "elsewhere"})
        assert sorted(shop.bodies("elsewhere")) == [0, 1]

    visited(shop, work)


def test_after_credentials_have_expired_they_are_read_again(shop: ServedShop) -> None:
    account = RenewedAccount(shop.sqs.url)
    console = console_at(shop.sqs.url, [WatchedQueue("orders", "orders-dlq")])
    console.account = account

    def expired(operation: str, parameters: dict[str, Any]) -> None:
        if not account.renewed:
            raise SqsError("ExpiredToken", "the security token included in the request is expired")

    first = console.client("sqs")
    with sqs_answers(shop, expired):
        with pytest.raises(ClientError, match="ExpiredToken"):
            console.run(failed.find, "orders-dlq")
        assert console.run(failed.find, "orders-dlq").name == "orders-dlq"
    assert console.client("sqs") is not first


@dataclass(frozen=True)
class RenewedAccount(EndpointAccount):
    """An account that counts how often its credentials are read."""

    renewed: list[bool] = field(default_factory=list)

    def renew(self) -> None:
        self.renewed.append(True)
