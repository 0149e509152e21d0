"""Jobs of the console beside others and commands, stopped, with stale previews, a slow SQS and a full disk."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import failed
from tarry.tools.console.access import THREADS, WatchedQueue
from tarry.tools.console.dead_letters.pages import listing
from tarry.tools.simulator.sqs import SqsError
from tests.consoles import PATIENCE_SECONDS, EndpointAccount, console_at, text_of
from tests.integration.console.sessions import (
    ALL,
    Session,
    audit_lines,
    delivery_ids,
    previewed,
    session,
    sqs_answers,
    world_of,
)
from tests.integration.failed.test_audit import disk_full
from tests.shop import ServedShop

THROTTLED = SqsError("RequestThrottled", "slow down")


def test_the_console_and_a_command_on_one_queue_do_each_message_once(
    shop: ServedShop, visitor: Session
) -> None:  # SPEC M3, M6
    """The job notes how many of the scan another one has taken."""
    shop.put(150)
    deleted: list[failed.Result] = []

    def remove() -> None:
        with world_of(shop), failed.opened("orders-dlq") as inspection:
            archive = failed.ArchiveFile(shop.folder / "archive.jsonl")
            deleted.extend(failed.remove(inspection, failed.select(everything=True), archive=archive))
            archive.close()

    visitor.scan()
    both = threading.Thread(target=remove)
    number = visitor.started("retry/start", **ALL)
    both.start()
    page = visitor.ended(number)
    both.join()
    retried = shop.bodies("orders")
    assert {each.outcome for each in deleted} <= {"deleted"}
    assert sorted([*retried, *(int(each.id[3:]) for each in deleted)]) == list(range(150))
    assert f"done {len(retried)} retried" in page
    assert not deleted or f"{len(deleted)} dead letter" in page
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
    with session(shop, state=shop.folder) as visitor:
        visitor.scan()
        monkeypatch.setattr("tarry.failed.journal.os.fsync", disk_full(syncs))
        page = visitor.done(f"{action}/start", **ALL)
    assert (" dead letters of orders-dlq failed " in page, text in page) == (True, True), page
    archived = [json.loads(line) for path in shop.folder.rglob("removed/*.jsonl") for line in path.open()]
    removed = {json.loads(line["record"]["body"])["id"] for line in archived if "record" in line}
    assert (set(range(90)) - {*shop.bodies("orders-dlq")} <= removed, shop.bodies("orders")) == (True, [])
    assert ((len(removed) > 0), shop.in_flight()) == (syncs > 2, 0)


def test_nothing_that_the_console_does_holds_messages_longer_than_keepalive(shop: ServedShop, visitor: Session) -> None:
    """The command would hold 200 in flight for 4 seconds, a second for each 50."""
    shop.put(190)
    shop.put(10, first=190, fingerprint="t0")
    asked: set[float] = set()

    def look(operation: str, parameters: dict[str, Any]) -> None:
        asked.update(each.get("VisibilityTimeout", 0) for each in parameters.get("Entries", [parameters]))

    with sqs_answers(shop, look):
        assert "200 found" in visitor.scan()
        edited, *chosen = delivery_ids(visitor.get("list?where=fingerprint+%3D+t0").text)
        for path in ("?by=error", f"/message/{edited}"):
            visitor.get(path)
        assert "done 2 removed" in visitor.done("remove/start", id=chosen[:2])
        assert "done 1 retried" in visitor.done("edit/start", id=edited, body='{"id": 0}')
        form = {"where": ["fingerprint = t0"], "canary": "1", "within": "1s"}
        assert "7 would be retried" in visitor.done("retry/dry-run", **form)
        assert "done 7 retried" in visitor.done("retry/start", **form)
    assert max(asked) == 3


def test_a_second_browser_sees_the_job_that_runs_and_a_stopped_one_releases_the_others(
    shop: ServedShop, visitor: Session
) -> None:
    shop.put(200)
    enough = threading.Event()

    def hold(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "SendMessageBatch" and len(shop.sqs.sqs.peek("orders")) >= 20:
            enough.set()
            raise THROTTLED

    visitor.scan()
    with sqs_answers(shop, hold):
        number = visitor.started("retry/start", **ALL, rate="10000")
        assert enough.wait(PATIENCE_SECONDS)
        for path in ("scan", "retry/start", "remove/start"):
            other = visitor.post(path, 409, **ALL).text
            assert ("A retry runs on orders-dlq" in text_of(other), f'href="/jobs/{number}"' in other) == (True, True)
        visitor.post(f"/jobs/{number}/stop", 303)
    result = visitor.ended(number)
    assert re.search(r"stopped \d+ retried .* Stopped: \d+ dead letters of the scan are left in orders-dlq\.", result)
    left, sent = shop.at_one_moment()
    assert (sorted(left + sent), shop.in_flight()) == (list(range(200)), 0)
    assert 0 < len(sent) < 200
    assert (audit_lines(shop)[0]["stopped"], audit_lines(shop)[0]["outcomes"]["retried"]) == (True, len(sent))


def test_with_an_sqs_that_throttles_a_job_ends_and_one_that_never_answers_fails_with_what_was_done(
    shop: ServedShop, visitor: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("requests", "sending", "removing"):
        monkeypatch.setattr(f"tarry.failed.{module}.wait", lambda _: None)
    shop.put(60)
    counts = {"ReceiveMessage": 0, "SendMessageBatch": 0}

    def sometimes(operation: str, parameters: dict[str, Any]) -> None:
        if operation in counts:
            counts[operation] += 1
            if counts[operation] % 3 == 0:
                raise THROTTLED

    def never(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "ReceiveMessage" and len(shop.sqs.sqs.peek("orders-dlq")) < 30:
            raise THROTTLED

    with sqs_answers(shop, sometimes):
        assert "done 60 found" in visitor.scan()
        assert "done 20 retried" in visitor.done("retry/start", where="body.id < 20")
    with sqs_answers(shop, never):
        result = visitor.done("remove/start", **ALL)
        assert "failed 40 removed" in result or "failed 20 removed" in result
        assert ("RequestThrottled" in result, "RequestThrottled" in visitor.scan()) == (True, True)
    assert shop.in_flight() == 0


# between a preview and its start


def test_what_changes_between_a_preview_and_its_start_is_an_answer_in_words(
    shop: ServedShop, visitor: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RECENT_SECONDS", -1)  # else pages may have numbers from before the deletion
    shop.put(4)
    visitor.scan()
    url = shop.sqs.sqs.url("orders-dlq")
    shop.sqs.client.purge_queue(QueueUrl=url)
    result = visitor.done("retry/start", **ALL)
    assert "No dead letter matches any more: retried or removed since the scan, or in flight" in result
    assert audit_lines(shop) == []
    for unknown in ("/dead-letters/nope", "/jobs/99"):
        visitor.get(unknown, 404)
    shop.sqs.client.delete_queue(QueueUrl=url)
    for text in (visitor.text("", 404), visitor.refusal("scan", 404), visitor.text("list", 404)):
        assert "The dead-letter queue is gone: queue 'orders-dlq' does not exist" in text
    assert "does not exist" in visitor.text("/dead-letters")


def stopped_scan(visitor: Session, shop: ServedShop) -> int:
    """Scan a part of the queue; return the number of dead letters found."""
    enough = threading.Event()
    polls = iter(range(10_000))

    def slow(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "ReceiveMessage" and next(polls) >= 4:
            enough.set()
            raise THROTTLED

    with sqs_answers(shop, slow):
        number = visitor.started("scan")
        assert enough.wait(PATIENCE_SECONDS)
        visitor.post(f"/jobs/{number}/stop", 303)
    found = re.search(r"stopped (\d+) found", text := visitor.ended(number))
    assert found, text
    return int(found[1])


@pytest.mark.parametrize(("verb", "done"), [("retry", "retried"), ("remove", "removed")])
def test_only_dead_letters_of_the_scan_are_changed_as_long_as_it_is_the_last_one(
    shop: ServedShop, visitor: Session, verb: str, done: str
) -> None:
    """A stopped scan has not found all; the others stay. After another scan, the preview is shown anew."""
    shop.put(300)
    count = stopped_scan(visitor, shop)
    assert 0 < count < 300
    old = visitor.get(f"{verb}?all=1").text
    assert "those that it has not found stay" in text_of(old)
    assert "The same in a terminal" not in old  # the command would take all
    assert f"{verb.capitalize()} {count}" in text_of(old)
    assert f"done {count} {done}" in visitor.done(f"{verb}/start", **previewed(old))
    assert len(shop.bodies("orders-dlq")) == 300 - count
    visitor.scan()
    again = visitor.post(f"{verb}/start", 409, **previewed(old)).text
    assert "The queue was scanned again since this page was opened, so nothing was started." in text_of(again)
    assert f"{300 - count} messages" in text_of(again)
    assert len(shop.bodies("orders-dlq")) == 300 - count
    assert f"done {300 - count} {done}" in visitor.done(f"{verb}/start", **previewed(again))


def test_settings_that_the_preview_does_not_show_yet_start_nothing(shop: ServedShop, visitor: Session) -> None:
    """The preview follows a field after some 400 ms; a quick click is faster."""
    shop.put(2)
    shop.sqs.queue("elsewhere")
    visitor.scan()
    fields = previewed(visitor.get("retry?all=1").text)
    answer = visitor.post("retry/start", 409, **fields, to="elsewhere").text
    assert "The settings were changed since this preview was shown, so nothing was started." in text_of(answer)
    assert "2 messages are sent to elsewhere" in text_of(answer)
    assert "done 2 retried" in visitor.done("retry/start", **previewed(answer) | {"to": "elsewhere"})
    assert sorted(shop.bodies("elsewhere")) == [0, 1]


def test_a_double_click_or_a_reload_sends_a_message_once(shop: ServedShop, visitor: Session) -> None:
    form = {"queue": "orders", "body": '{"id": 1}', "once": previewed(visitor.get("/send").text)["once"]}
    with ThreadPoolExecutor(2) as clicks:
        answers = [*clicks.map(lambda _: visitor.post("/send", **form), range(2)), visitor.post("/send", **form)]
    assert len({re.search(r"/message/[\w-]+", each.text)[0] for each in answers}) == 1  # type: ignore[index]
    visitor.post("/send", **form | {"body": '{"id": 2}'})  # edited after going back
    assert sorted(shop.bodies("orders")) == [1, 2]


# a slow SQS, and credentials that expire


def test_pages_that_need_no_sqs_answer_while_it_hangs(
    shop: ServedShop, visitor: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put(1)
    goes_on, all_hang, hanging, find = threading.Event(), threading.Event(), list[str](), failed.find

    def hang(address: str) -> failed.DeadLetterQueue:
        hanging.append(address)
        if len(hanging) == THREADS:
            all_hang.set()
        goes_on.wait(PATIENCE_SECONDS)
        return find(address)

    visitor.scan()
    monkeypatch.setattr("tarry.failed.find", hang)
    with ThreadPoolExecutor(12) as browsers:
        waiting = [browsers.submit(visitor.get, "remove?all=1") for _ in range(12)]
        assert all_hang.wait(PATIENCE_SECONDS / 2)
        for path in ("/", "/audit", "/jobs", "/send", "condition?where=type+%3D+x"):
            visitor.get(path)
        assert not any(each.done() for each in waiting)
        goes_on.set()
        assert {each.result().status for each in waiting} == {200}


@dataclass(frozen=True)
class RenewedAccount(EndpointAccount):
    """An account that counts how often its credentials are read."""

    renewed: list[bool] = field(default_factory=list)

    def renew(self) -> None:
        self.renewed.append(True)


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
