"""The pages of dead letters against a served SQS: scans, groups, filters, retries, edits and removals."""

import json
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tarry import failed
from tarry.failed.groups import as_value
from tarry.tools.simulator.sqs import SqsError
from tests.consoles import text_of
from tests.integration.console.sessions import (
    ALL,
    PAGE,
    Session,
    audit_lines,
    delivery_ids,
    previewed,
    session,
    sqs_answers,
    world_of,
)
from tests.shop import ServedShop
from tests.unit.failed.dead_letters import envelope_of

TIMEOUT = {"type": "app.Timeout", "fingerprint": "t0"}


def send(shop: ServedShop, body: str, envelope: Any = None, queue: str = "orders-dlq") -> None:
    record = {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}} if envelope else {}
    message = {"QueueUrl": shop.sqs.sqs.url(queue), "MessageBody": body, "MessageAttributes": record}
    shop.sqs.on_the_loop(lambda: shop.sqs.sqs.call("SendMessage", message))


def test_dead_letters_are_scanned_grouped_filtered_tried_out_retried_and_audited(
    shop: ServedShop, visitor: Session
) -> None:
    shop.put(30)
    shop.put(12, first=30, message="<script>alert(1)</script>\x1b[31m\u202e", **TIMEOUT)
    assert "Not scanned yet. The queue has about 42 messages." in visitor.text()
    visitor.get("list", 409)
    assert ("42 found" in visitor.scan(), shop.in_flight()) == (True, 0)
    groups = visitor.get().text
    assert "<script>alert" not in groups
    text = visitor.text()
    assert "30 app.CardDeclined: no fingerprint 9f2c61d0a4be 2026-11-21 08:21 UTC" in text
    assert r"12 app.Timeout: <script>alert(1)</script>\x1b[31m\u202e fingerprint t0" in text
    for by in ("error", "type", "queue", "reason"):
        visitor.get(f"?by={by}")
    visitor.get("?by=body", 400)

    chosen = "where=type+%3D+app.Timeout&where=body.id+%3E%3D+34"
    assert len(delivery_ids(visitor.get(f"list?{chosen}").text)) == 8
    assert "Retry all 8 that match" in visitor.text(f"list?{chosen}")
    wrong = visitor.get(f"list?{chosen}&where=typ+%3D+x", 400).text
    assert 'value="typ = x"' in wrong  # what was typed is not lost
    assert "body.id &gt;= 34" in wrong  # nor the filters that parse
    text = visitor.text(f"list?{chosen}&where=typ+%3D+x", 400)
    assert "invalid condition 'typ = x' at column 1: unknown field 'typ'" in text
    assert (delivery_ids(wrong), "Retry all" in text) == ([], False)  # of messages that the filter would have left out
    typing = visitor.text(f"condition?{chosen}&where=attempts+%3D+5", HX_Request="1")
    assert typing.startswith("8 of 42 dead letters match; Enter to show.")
    typing = visitor.text("condition?where=message+%7E+%28a%2B%29%2B%24")
    assert "Enter to compare 42 dead letters" in typing  # "message ~ (a+)+$" could block every page

    form = {"where": ["type = app.Timeout", "body.id >= 34"]}
    preview = visitor.text(f"retry?{chosen}")
    for part in (
        "Retry 8 dead letters of orders-dlq where type = app.Timeout and body.id >= 34",
        "8 messages are sent to orders, and then deleted from orders-dlq.",
        "tarry failed retry --queue orders-dlq --where 'type = app.Timeout' --where 'body.id >= 34'",
    ):
        assert part in preview
    tried = visitor.done("retry/dry-run", **form)
    for part in ("done 8 would be retried", "Retry 8 now", "8 dead letters would be sent to orders."):
        assert part in tried
    assert (len(shop.bodies("orders")), audit_lines(shop)) == (0, [])
    shop.put(1, first=60, failed_at="2099-01-01T00:00:00Z", **TIMEOUT)  # after the scan

    result = visitor.done("retry/start", **form)
    assert ("done 8 retried" in result, "not in the queue any more" in result) == (True, False)
    assert sorted(shop.bodies("orders")) == list(range(34, 42))
    assert "34 dead letters." in visitor.text()
    again = visitor.done("retry/start", **form)
    assert "No dead letter" not in again  # the scan has none either: nothing was expected
    [line] = audit_lines(shop)
    assert {
        "command": "tarry failed retry", "from": "tarry console", "outcomes": {"retried": 8}, "via": "queue", **form,
    }.items() <= line.items()  # fmt: skip
    assert "tarry failed retry" in visitor.text("/audit")


def test_dead_letters_that_are_selected_are_removed_into_an_archive_from_which_they_can_be_restored(
    shop: ServedShop, visitor: Session
) -> None:
    """An empty queue says that it was scanned; the buttons for all are apart."""
    assert "the job goes on" not in visitor.scan()
    page = visitor.text()
    assert ("Scanned" in page, "0 dead letters" in page, "Scan again" in page) == (True, True, True)
    shop.put(12)
    visitor.scan()
    for path in ("", "list"):
        html = visitor.get(path).text
        assert html.index("Retry all") < html.index("</table>") < html.index("Remove all")
    chosen = delivery_ids(html)[:3]
    preview = visitor.refusal("remove", 200, id=chosen)
    assert "Remove 3 dead letters of orders-dlq that you selected" in preview
    assert "3 messages of orders-dlq are written to a new archive in" in preview
    result = visitor.done("remove/start", id=chosen)
    assert "done 3 removed" in result
    found = re.search(r"To restore them: tarry failed restore (\S+) --queue orders-dlq --endpoint-url", result)
    assert found
    assert len(shop.bodies("orders-dlq")) == 9
    with world_of(shop):
        restored = list(failed.restore(Path(found[1]), failed.find("orders-dlq")))
    assert [each.outcome for each in restored] == ["restored"] * 3
    assert sorted(shop.bodies("orders-dlq")) == list(range(12))
    assert (audit_lines(shop)[0]["archive"], Path(found[1]).stat().st_mode & 0o777) == (found[1], 0o600)
    assert "Removed 3 dead letters, chosen by id" in visitor.text("/audit")
    visitor.scan()
    of_one = visitor.get(f"/message/{chosen[0]}", 404).text  # also by its delivery id, which the audit has not
    assert "Removed 3 dead letters, chosen by id; this message was among them." in text_of(of_one)
    [anchor] = re.findall(r'href="/audit#(run-[^"]+)"', of_one)
    assert f'id="{unquote(anchor)}"' in visitor.get("/audit").text
    gone = visitor.done("remove/start", id=chosen)  # their delivery ids are gone
    assert ("3 failed" in gone, "not found in orders-dlq" in gone) == (True, True)


def test_a_body_is_edited_as_the_command_does_it(shop: ServedShop, visitor: Session) -> None:
    shop.put(5)
    visitor.scan()
    assert "The message is sent to orders with this body" in visitor.text("edit?id=id-3")
    form = {"id": "id-3", "body": '{"id": 33}'}
    assert visitor.refusal("edit/changes", 200, **form) == '{ - "id": 3 + "id": 33 }'
    wrong = visitor.post("edit/start", 400, **form | {"body": '{"id": 33'}).text
    assert "the body was JSON, the edited body is not" in wrong
    assert "{&#34;id&#34;: 33</textarea>" in wrong  # what was typed is not lost
    same = visitor.guest.post(f"{PAGE}/edit/start", form | {"body": '{"id": 3}'}).text
    assert "You did not change the body." in same
    assert "done 1 retried" in visitor.done("edit/start", **form | {"body": '{"id":\r\n33}'})
    [sent] = shop.sqs.on_the_loop(lambda: [each.body for each in shop.sqs.sqs.peek("orders")])
    assert sent == '{"id": 33}'  # on one line, as it was
    assert audit_lines(shop)[0]["outcomes"] == {"retried": 1, "edited": 1}
    visitor.get("edit?id=id-3", 404)


def test_bodies_of_1_mib_and_with_100_000_nested_brackets_are_filtered_and_edited(
    shop: ServedShop, visitor: Session
) -> None:
    large = json.dumps({"id": 1, "text": "</textarea><script>" + "x" * 1_000_000})
    for body in (large, "[" * 100_000):
        send(shop, body)
    visitor.scan()
    page = visitor.get("list?where=body.id+%3D+1").text
    [delivery_id] = delivery_ids(page)
    assert len(page) < 20_000
    assert len(delivery_ids(visitor.get("list?where=body+~+%5C%5B%5C%5B").text)) == 1
    assert "</textarea><script>" not in visitor.get(f"edit?id={delivery_id}").text
    form = {"id": delivery_id, "body": large.replace("id", "ID")}
    assert "too long to show its changes" in visitor.post("edit/changes", **form).text
    refused = visitor.post("edit/start", 400, **form | {"body": large + "y" * 60_000})
    assert "the edited body is not" in refused.text


LINES = "2 errors\n  amount: too low\r\n  name: \ud83d is half an emoji"


def test_texts_and_ids_with_lines_and_lone_surrogates_are_shown_and_retried(shop: ServedShop, visitor: Session) -> None:
    """A form changes line ends to CR LF, and an address has no lone surrogates."""
    shop.put(2, message=LINES, type="E", reason="\udfff", fingerprint="[" * 5_000)
    shop.put(1, first=2, message="plain")
    send(shop, '{"id": 3}', envelope_of("{}", "\ud800"))  # which no address can have
    visitor.scan()
    for by in ("fingerprint", "error", "type", "queue", "reason"):
        groups = visitor.get(f"?by={by}").text
        if by == "error":
            address = re.search(r'data-key="r" href="([^"]+)"', groups)
    for name in ("message", "reason", "fingerprint"):
        visitor.get(f"condition?where={name}+%3D+")
    assert address
    page = visitor.get(address[1].replace("&amp;", "&")).text
    assert "2 messages are sent to orders" in text_of(page)
    assert "done 2 retried" in visitor.done("retry/start", **previewed(page))
    assert sorted(shop.bodies("orders-dlq")) == [2, 3]
    for each in re.findall(r'href="(/message/[^"]+)"', visitor.get("list").text):
        visitor.get(each)
    assert (as_value(LINES), as_value("é = ü")) == (json.dumps(LINES), "é = ü")


def test_dead_letters_with_the_same_id_are_retried_one_after_the_other_as_the_preview_says(
    shop: ServedShop, visitor: Session
) -> None:
    shop.put(3)
    shop.put(2)  # doubles
    visitor.scan()
    page = visitor.text("retry?all=1")
    assert "3 messages are sent to orders" in page
    assert "2 messages stay in orders-dlq: another dead letter with the same id is sent first" in page
    for path, outcome in (("retry/dry-run", "3 would be retried"), ("retry/start", "3 retried")):
        result = visitor.done(path, **ALL)
        assert f"done {outcome}" in result
        assert ("2 were skipped" in result, "not in the queue any more" in result) == (True, False)
    assert (len(shop.bodies("orders")), len(shop.bodies("orders-dlq"))) == (3, 2)


def test_canaries_that_come_back_end_a_retry(shop: ServedShop, visitor: Session) -> None:
    shop.put(8)

    def dead_letter_again(operation: str, parameters: dict[str, Any]) -> None:
        """Dead-letter what a retry sends, in a moment."""
        if operation == "SendMessageBatch" and parameters["QueueUrl"].endswith("/orders"):
            index = json.loads(parameters["Entries"][0]["MessageBody"])["id"]
            threading.Timer(0.05, shop.put, (1, index)).start()

    visitor.scan()
    form = {**ALL, "canary": "1", "within": "20s"}
    text = "1 dead letter is sent first and watched. If one comes back to orders-dlq, no others are sent."
    assert text in visitor.refusal("retry", 200, **form)
    with sqs_answers(shop, dead_letter_again):
        result = visitor.done("retry/start", **form)
    for part in (
        "stopped: messages came back 1 retried",
        "1 of 1 canaries came back to orders-dlq: no others were retried",
        "Scan orders-dlq to see why it failed this time. Scan s",
    ):
        assert part in result
    assert "not in the queue any more" not in result
    assert "came back to orders-dlq since this scan" in visitor.text()
    assert len(shop.bodies("orders")) == 1
    assert "canaries came back" in audit_lines(shop)[0]["came_back"]
    assert 'value="x"' in visitor.post("retry/start", 400, **ALL, canary="x").text
    why = visitor.refusal("retry", 400, **ALL, canary="9" * 5_000)
    assert "The number of canaries must be a whole number" in why


def test_one_button_scans_all_queues_with_messages(shop: ServedShop) -> None:
    shop.put(3)
    shop.sqs.queue("refunds-dlq")
    shop.sqs.queue("empty-dlq")
    send(shop, "{}", envelope_of("{}", fingerprint="of-refunds"), "refunds-dlq")
    with session(shop, "orders-dlq", "refunds-dlq", "empty-dlq") as visitor:
        assert "Scan all 2 queues with messages" in visitor.text("/dead-letters")
        assert visitor.post("/dead-letters", 303).headers["Location"] == "/dead-letters"
        assert ("3 found" in visitor.ended(1), "1 found" in visitor.ended(2)) == (True, True)
        address = "/dead-letters/refunds-dlq/list?where=fingerprint+%3D+of-refunds"
        assert address in visitor.get("/dead-letters").text
        text = visitor.text("/dead-letters")
        assert "4 dead letters of the 2 scanned queues, by cause" in text
        assert "4 app.CardDeclined: no 3 in orders-dlq, 1 in refunds-dlq" in text
        visitor.get("/jobs/3", 404)


def test_the_groups_and_the_list_take_the_numbers_of_the_overview_once_it_was_read_after_the_scan(
    shop: ServedShop, visitor: Session
) -> None:
    """No request to SQS delays them then."""
    shop.put(12)
    looked: list[str] = []

    def look_ups(path: str) -> int:
        looked.clear()
        visitor.get(path)
        return looked.count("ListDeadLetterSourceQueues")  # the overview makes none

    with sqs_answers(shop, lambda operation, _: looked.append(operation)):
        visitor.scan()
        shop.until(lambda: not look_ups(""))
        assert look_ups("list") == 0
        assert "The queue has about 12 messages." in visitor.text()
        visitor.done("remove/start", where="body.id < 5")
        assert "The queue has about 7 messages." in visitor.text()


def test_beside_a_queue_that_may_not_be_read_the_others_are_listed(shop: ServedShop) -> None:
    shop.sqs.queue("secret-dlq")

    def denies(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "GetQueueAttributes" and "secret-dlq" in parameters["QueueUrl"]:
            raise SqsError("AccessDenied", "not authorized to perform: sqs:getqueueattributes")

    with session(shop, "orders-dlq", "secret-dlq") as visitor, sqs_answers(shop, denies):
        page = visitor.get("/dead-letters").text
    assert ("AWS denies access" in page, f'href="{PAGE}"' in page) == (True, True)


# read-only, and what pages must not show


def test_a_read_only_console_scans_and_changes_nothing_and_one_without_bodies_compares_none(shop: ServedShop) -> None:
    shop.put(2)
    with session(shop, can_write=False, shows_bodies=False) as visitor:
        visitor.scan()
        assert "This console is read-only. Start it with --write." in visitor.text("retry?all=1")
        assert "done 2 would be retried" in visitor.done("retry/dry-run", **ALL)
        for path in ("retry/start", "remove/start", "edit/start"):
            assert "This console is read-only" in visitor.refusal(path, 403, **ALL, id="id-1", body="x")
        for path in ("list?where=body.id+%3D+1", "retry?where=body.id+%3D+1"):
            assert "this console shows no bodies" in visitor.text(path, 400)
        beside = visitor.get("list?where=typ+%3D+x&where=body.id+%3D+1", 400)
        assert delivery_ids(beside.text) == []  # the second is not applied either
        assert "2 of 2 dead letters match" in visitor.text("condition?where=body.id+%3D+1&where=attempts+%3D+5")
        visitor.get("edit?id=id-1", 403)
        visitor.post("retry", 400)  # nothing is selected
        assert sorted(shop.bodies("orders-dlq")) == [0, 1]


def test_without_bodies_neither_extra_nor_conditions_on_bodies_in_the_audit_are_shown(shop: ServedShop) -> None:
    shop.put(1, extra={"card": "SECRET-1"})  # type: ignore[arg-type]
    line = {"v": 1, "at": "2026-11-22T00:00:00Z", "command": "tarry failed retry", "outcomes": {"retried": 1}}
    audited = {**line, "where": ["body.card = SECRET-2", "type = app.E"]}
    (shop.folder / "audit.jsonl").write_text(json.dumps(audited) + "\n")
    for shows_bodies in (False, True):
        with session(shop, shows_bodies=shows_bodies) as visitor:
            visitor.scan()
            message, audit = visitor.get("/message/id-0").text, visitor.get("/audit").text
        assert ("SECRET-1" in message, "SECRET-2" in audit) == (shows_bodies, shows_bodies)
        assert "type = app.E" in audit


def test_at_aws_all_of_a_queue_is_removed_only_if_its_name_is_typed(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    monkeypatch.setattr("tests.consoles.EndpointAccount.is_aws", True)
    monkeypatch.setattr("tests.consoles.EndpointAccount.identity", lambda _: "arn:aws:iam::123456789012:user/ada")
    shop.put(2)
    with session(shop, state=shop.folder) as visitor:
        visitor.scan()
        assert "Type the name of the queue, orders-dlq" in visitor.text("remove?all=1")
        for name in ("", "orders"):
            answer = visitor.guest.post(f"{PAGE}/remove/start", {**ALL, "name": name})
            assert f"&#39;{name}&#39; is not orders-dlq: no dead letter was removed" in answer.text
        assert len(shop.bodies("orders-dlq")) == 2
        assert "2 removed" in visitor.done("remove/start", **ALL, name="orders-dlq")
