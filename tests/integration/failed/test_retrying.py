"""Dead letters sent back to their queues: send, confirm, delete; errors on the way; removal."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tarry import ConfigurationError, DeadLetter, Fixed, Message, RetryInPlace, SendAgain, consumer, failed
from tarry.failed import Result, Routes
from tarry.testing import Sandbox
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.testing.fault_injection import REFUSALS
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn


class Gateway:
    """A handler that fails until its downstream service is up."""

    def __init__(self, **settings: Any) -> None:
        self.is_down = True
        self.done: list[Any] = []
        self.seen: list[Message] = []

        @consumer(**{"max_attempts": 2, "backoff": Fixed(10), **settings})
        def handler(message: Message) -> None:
            self.seen.append(message)
            if self.is_down:
                raise ConnectionError(f"down, attempt {message.attempt}")
            self.done.append(message.json()["id"])

        self.handler = handler


@pytest.fixture
def gateway(sandbox: Sandbox) -> Gateway:
    gateway = Gateway()
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(gateway.handler, "orders")
    return gateway


def dead_lettered(sandbox: Sandbox, count: int = 3, queue: str = "orders", **more: Any) -> list[str]:
    """Send messages that are dead-lettered; return their ids."""
    ids = [sandbox.send(queue, {"id": index}, **more) for index in range(count)]
    sandbox.run()
    return ids


def put(sandbox: Sandbox, body: str = "{}", envelope: Any = None, queue: str = "orders-dlq", **more: Any) -> str:
    """Send a message to the dead-letter queue; return its SQS message id."""
    own = {} if envelope is None else {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}}
    sent = {"MessageBody": body, "MessageAttributes": {**more.pop("attributes", {}), **own}, **more}
    answer = sandbox.sqs.call("SendMessage", {"QueueUrl": sandbox.sqs.url(queue), **sent})
    return str(answer["MessageId"])


def retry(*ids: str, where: tuple[str, ...] = (), to: str | None = None, known: tuple[str, ...] = ()) -> list[Result]:
    """Retry the selected dead letters; without ids and conditions, all of them."""
    with failed.opened("orders-dlq") as inspection:
        selection = failed.select(ids, where, everything=not ids and not where)
        return list(failed.retry(inspection, selection, Routes(inspection.queue, to, known)))


def outcomes(results: list[Result]) -> dict[str, int]:
    return dict(Counter(result.outcome for result in results))


def places(sandbox: Sandbox) -> tuple[int, int]:
    """Return the numbers of messages in the queue and the dead-letter queue; all dead letters must be visible."""
    assert all(dead_letter.invisible_seconds == 0 for dead_letter in sandbox.messages("orders-dlq"))
    return len(sandbox.messages("orders")), len(sandbox.messages("orders-dlq"))


# after a retry


def test_a_message_dead_lettered_a_second_time_has_its_new_error_and_all_of_its_history(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC M3, F2, K3
    """Attempts start again at 1; the total of the failure record, which its handler sees, continues."""
    [order] = dead_lettered(sandbox, 1)
    assert outcomes(retry()) == {"retried": 1}
    sandbox.run()
    assert [message.attempt for message in gateway.seen] == [1, 2, 1, 2]
    [dead_letter] = sandbox.messages("orders-dlq")
    seen, failure = gateway.seen[2].failure, dead_letter.failure
    assert seen is not None
    assert failure is not None
    assert (seen.attempts, seen.type) == (2, "ConnectionError")
    assert (dead_letter.id, failure.attempts, failure.reason) == (order, 4, "exhausted")
    assert failure.message == "down, attempt 2"
    assert [entry["attempt"] for entry in failure.history] == [2, 2]
    gateway.is_down = False
    retry()
    assert sandbox.run().story(order)[-1].state == "COMMITTED"
    assert (gateway.done, places(sandbox)) == ([0], (0, 0))


def test_a_copy_moved_by_the_redrive_policy_gets_fresh_attempts_and_steps(sandbox: Sandbox) -> None:  # SPEC F2, E3
    """It crashed its process after it was sent again: with its old counters it would be dead-lettered at once."""
    gateway = Gateway(on_failure=[RetryInPlace(), SendAgain("slow", times=1), DeadLetter()])
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(gateway.handler, "orders")
    used_up = envelope_of("{}", carried=900, hops=15, steps={"slow": 1}, attempts=900)
    put(sandbox, "{}", used_up)
    assert outcomes(retry()) == {"retried": 1}
    sandbox.run(check=False)
    assert [message.attempt for message in gateway.seen] == [1, 2, 3]  # two attempts, and one as a copy sent again
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert dead_letter.failure.attempts == 903


def test_body_attributes_and_group_are_kept(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    kinds = {
        "tenant": {"DataType": "String.label", "StringValue": "acme"},
        "weight": {"DataType": "Number.kg", "StringValue": "1.50"},
        "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    put(sandbox, '{"id":  1}', envelope_of('{"id":  1}'), attributes=kinds, MessageGroupId="fair")
    retry()
    [stored] = sandbox.sqs.peek("orders")
    assert (stored.body, stored.group) == ('{"id":  1}', "fair")
    assert {name: stored.attributes[name] for name in kinds} == kinds


def test_a_message_without_room_for_an_envelope_is_sent_without_one(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC F3
    full = {f"a{index}": {"DataType": "String", "StringValue": "x"} for index in range(10)}
    put(sandbox, "{}", attributes=full)
    [result] = retry(to="orders")
    assert (result.outcome, "without its tarry envelope" in str(result.note)) == ("retried", True)
    assert places(sandbox) == (1, 0)


# selection


def test_ids_and_conditions_select_and_an_unknown_id_is_reported(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    """Ids are retried in their order; the message id of SQS is one too."""
    ids = dead_lettered(sandbox, 25)
    delivery_id = next(each.delivery_id for each in sandbox.messages("orders-dlq") if each.id == ids[11])
    results = retry(ids[20], "unknown", ids[3], delivery_id)
    assert [(result.id, result.outcome) for result in results] == [
        (ids[20], "retried"), ("unknown", "failed"), (ids[3], "retried"), (ids[11], "retried"),
    ]  # fmt: skip
    assert results[1].error == "not found in orders-dlq: scanned 25 of about 25"
    assert [dead_letter.id for dead_letter in sandbox.messages("orders")] == [ids[20], ids[3], ids[11]]
    assert outcomes(retry(where=("body.id >= 12", "body.id < 15"))) == {"retried": 3}
    assert places(sandbox) == (6, 19)


def test_undecodable_dead_letters_are_not_retried(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M4
    put(sandbox, "{x", envelope_of("{x", "broken", reason="undecodable"))
    [result] = retry()
    assert (result.outcome, result.note) == ("skipped", "its body cannot be decoded: edit or remove it")
    [result] = retry("broken")
    assert (result.outcome, result.hindrance) == ("failed", "undecodable")
    assert places(sandbox) == (0, 1)


def test_a_dead_letter_is_not_offered_twice_in_an_inspection(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    """The consumer dead-letters it again during the inspection."""
    ids = dead_lettered(sandbox, 15)
    with failed.opened("orders-dlq") as inspection:
        results = []
        for result in failed.retry(inspection, failed.select(everything=True), Routes(inspection.queue)):
            results.append(result)
            sandbox.advance(60)
        assert inspection.handled.repeated > 0
    assert sorted(result.id for result in results) == sorted(ids)


def test_an_edited_dead_letter_is_sent_with_its_new_body_and_old_id(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC M3, M4
    """If it is dead-lettered again, it has the time of its edit."""
    put(sandbox, "{x", envelope_of("{x", "broken", reason="undecodable"))
    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = failed.show(inspection, failed.select(["broken"])).dead_letters
        edited = failed.edit(dead_letter, '{"id": 7}', sandbox.now)
        assert outcomes(failed.retry_dead_letters(inspection, [edited], Routes(inspection.queue))) == {"retried": 1}
    sandbox.run(check=False)
    assert (gateway.seen[0].id, gateway.seen[0].body) == ("broken", '{"id": 7}')
    with failed.opened("orders-dlq") as inspection:
        [again] = failed.show(inspection, failed.select()).dead_letters
    assert (again.id, again.body, again.edited is not None) == ("broken", '{"id": 7}', True)


# the target queue


def test_dead_letters_stay_until_their_target_is_known(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    unknown = put(sandbox)
    [result] = retry()
    assert (result.outcome, result.hindrance) == ("failed", "nowhere")
    assert "--to QUEUE" in str(result.error)
    [known] = dead_lettered(sandbox, 1)
    for ids in ((unknown,), (known, unknown)):  # of several, none is sent
        with pytest.raises(failed.NowhereToGo, match="--to QUEUE"):
            retry(*ids)
    with pytest.raises(failed.NowhereToGo, match="the dead-letter queue itself"):
        retry(to="orders-dlq")
    with pytest.raises(failed.UnknownQueue):
        retry(to="nope")
    assert places(sandbox) == (0, 2)
    assert outcomes(retry(to="orders")) == {"retried": 2}


@pytest.mark.parametrize(
    "origin", ["arn:aws:sqs:us-east-1:666666666666:orders", arn("payroll"), arn("orders-dlq"), "x"]
)
def test_an_origin_that_is_not_a_source_is_refused(sandbox: Sandbox, gateway: Gateway, origin: str) -> None:  # SPEC M3
    sandbox.queue("payroll")
    put(sandbox, "{}", {**envelope_of("{}", "sly"), "origin": origin})
    with pytest.raises(failed.NowhereToGo, match="not a source of orders-dlq"):
        retry("sly")
    assert places(sandbox) == (0, 1)


def test_a_known_queue_is_trusted_in_this_account(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    sandbox.queue("payroll")
    put(sandbox, "{}", {**envelope_of("{}"), "origin": "arn:aws:sqs:us-east-1:666666666666:payroll"})
    assert outcomes(retry(known=("payroll",))) == {"retried": 1}
    assert len(sandbox.messages("payroll")) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("AccessDenied", 403),
        ("InvalidAction", 400),
        ("AWS.SimpleQueueService.UnsupportedOperation", 400),
        ("404", 404),
        ("InternalFailure", 501),
    ],
)
def test_where_sqs_does_not_list_sources_the_redrive_policy_of_the_origin_is_read(
    sandbox: Sandbox, gateway: Gateway, code: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    """The permission is missing, or an emulator does not have the operation. `--to` always suffices."""
    dead_lettered(sandbox, 1)
    put(sandbox)
    monkeypatch.setitem(REFUSALS, "denied", SqsError(code, "no", status=status))
    sandbox.faults.add("denied", operation="ListDeadLetterSourceQueues", times=None)
    assert outcomes(retry()) == {"retried": 1, "failed": 1}
    assert outcomes(retry(to="orders")) == {"retried": 1}


# errors


@pytest.mark.parametrize(
    ("faults", "copies"),
    [
        (["lost_answer", "lost_answer"], 2),
        (["garbled", "garbled"], 1),
        (["lost_answer", "denied"], 1),
        (["lost_answer", *["throttle"] * 4], 1),
    ],
    ids=["lost", "garbled", "then denied", "then throttled"],
)
def test_a_send_that_may_have_been_applied_is_unconfirmed_and_its_dead_letter_stays(
    sandbox: Sandbox, gateway: Gateway, faults: list[str], copies: int
) -> None:  # SPEC E6, J6, M6
    """A wrong MD5 confirms nothing. After a refusal or throttling, it is not sent once more."""
    ids = dead_lettered(sandbox, 3)
    for fault in faults:
        sandbox.faults.add(fault, operation="SendMessageBatch")
    results = retry()
    sandbox.faults.clear()
    assert [(each.id, each.outcome) for each in results] == [(each, "unconfirmed") for each in ids]
    assert "SQS did not confirm the send" in str(results[0].error)
    assert "it is still in orders-dlq, and may also be in orders" in str(results[0].error)
    assert places(sandbox) == (3 * copies, 3)


def test_a_send_that_is_confirmed_after_a_lost_answer_says_that_the_message_may_be_there_twice(
    sandbox: Sandbox, gateway: Gateway, tmp_path: Path
) -> None:  # SPEC M6
    dead_lettered(sandbox, 1)
    archive, _ = removed(sandbox, tmp_path)
    for queue, send in (("orders-dlq", lambda: failed.restore(archive, failed.find("orders-dlq"))), ("orders", retry)):
        sandbox.faults.add("lost_answer", operation="SendMessageBatch")
        results = list(send())
        assert results[0].note == f"it may be in {queue} twice: SQS did not answer the first request"
        assert len(sandbox.messages(queue)) == 2


def test_messages_that_sqs_refuses_stay_in_the_dead_letter_queue(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    dead_lettered(sandbox, 10)
    sandbox.faults.add("partial_failure", operation="SendMessageBatch", times=1)
    results = retry()
    counts = outcomes(results)
    assert counts["retried"] + counts["failed"] == 10
    assert places(sandbox) == (counts["retried"], counts["failed"])


def test_throttled_requests_are_repeated(sandbox: Sandbox, gateway: Gateway) -> None:
    dead_lettered(sandbox, 35)
    sandbox.faults.add("throttle", times=None, chance=0.6)
    assert outcomes(retry()) == {"retried": 35}
    sandbox.faults.clear()
    assert len(sandbox.messages("orders-dlq")) == 0


def test_without_permission_to_send_nothing_is_changed(sandbox: Sandbox, gateway: Gateway) -> None:
    dead_lettered(sandbox, 25)
    sandbox.faults.add("denied", operation="SendMessageBatch", times=None)
    results = retry()
    assert {result.hindrance for result in results} == {"denied"}
    assert len(results) == 10  # the others would be denied as well
    assert "sqs:SendMessage on orders is not allowed" in str(results[0].error)
    sandbox.faults.clear()
    assert places(sandbox) == (0, 25)


def test_without_permission_to_delete_nothing_is_sent_or_removed(sandbox: Sandbox, gateway: Gateway) -> None:
    dead_lettered(sandbox, 3)
    sandbox.faults.add("denied", operation="DeleteMessageBatch", times=None)
    for work in (retry, remove):
        with pytest.raises(failed.NotAllowed, match="sqs:DeleteMessage on orders-dlq"):
            work()
    sandbox.faults.clear()
    assert places(sandbox) == (0, 3)


@pytest.mark.parametrize(("fault", "times"), [("lost_answer", 2), ("unreachable", None)])
def test_a_delete_that_fails_is_repeated_and_then_reported(
    sandbox: Sandbox, gateway: Gateway, fault: str, times: int | None
) -> None:  # SPEC E6
    dead_lettered(sandbox, 1)
    with failed.opened("orders-dlq") as inspection:
        failed.check_may_delete(inspection)
        sandbox.faults.add(fault, operation="DeleteMessageBatch", times=times)
        [result] = failed.retry_dead_letters(inspection, inspection.poll(), Routes(inspection.queue))
        sandbox.faults.clear()
    assert result.outcome == ("retried" if times else "unconfirmed")
    assert times or "sent to orders, but it may still be in orders-dlq" in str(result.error)
    assert places(sandbox) == (1, 0 if times else 1)


def test_a_dead_letter_received_by_another_consumer_is_not_sent(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    dead_lettered(sandbox, 1)
    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = inspection.poll()
        sandbox.faults.add("unreachable", operation="ChangeMessageVisibilityBatch", times=None)
        sandbox.sleep(60)  # its visibility timeout could not be extended
        url = sandbox.sqs.url("orders-dlq")
        [taken] = sandbox.sqs.call("ReceiveMessage", {"QueueUrl": url})["Messages"]
        sandbox.sqs.call("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": taken["ReceiptHandle"]})
        sandbox.faults.clear()
        [result] = failed.retry_dead_letters(inspection, [dead_letter], Routes(inspection.queue))
    assert (result.outcome, "another consumer" in str(result.error)) == ("failed", True)
    assert places(sandbox) == (0, 0)


def test_a_message_larger_than_the_limit_of_its_queue_stays(sandbox: Sandbox) -> None:  # PLATFORM 17
    sandbox.queue("orders", dead_letter="orders-dlq", maximum_message_size=1024)
    put(sandbox, "x" * 2_000, envelope_of("x" * 2_000))
    [result] = retry()
    assert (result.outcome, "the limit of orders is 1024 bytes" in str(result.error)) == ("failed", True)
    assert places(sandbox) == (0, 1)


# FIFO


@pytest.fixture
def ledger(sandbox: Sandbox) -> Gateway:
    gateway = Gateway()
    sandbox.queue("ledger.fifo", dead_letter="ledger-dlq.fifo")
    sandbox.connect(gateway.handler, "ledger.fifo")
    return gateway


def retry_ledger() -> list[Result]:
    with failed.opened("ledger-dlq.fifo") as inspection:
        return list(failed.retry(inspection, failed.select(everything=True), Routes(inspection.queue)))


def test_on_fifo_messages_of_a_group_keep_their_order(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7
    dead_lettered(sandbox, 25, "ledger.fifo", group_id="a")
    ledger.is_down = False
    assert outcomes(retry_ledger()) == {"retried": 25}
    sandbox.run()
    assert ledger.done == list(range(25))


def test_on_fifo_no_message_overtakes_one_of_its_group_that_was_not_sent(
    sandbox: Sandbox, ledger: Gateway
) -> None:  # SPEC H1
    dead_lettered(sandbox, 5, "ledger.fifo", group_id="a")
    sandbox.faults.add("unavailable", operation="SendMessageBatch", times=1)
    sandbox.faults.add("garbled", operation="SendMessageBatch", times=1)
    results = retry_ledger()
    assert outcomes(results) == {"unconfirmed": 1, "failed": 4}
    assert all("behind" in str(result.error) for result in results[1:])


def test_on_fifo_a_repeated_send_is_dropped_as_a_duplicate(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7, M6
    dead_lettered(sandbox, 1, "ledger.fifo", group_id="a")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch", times=2)
    assert outcomes(retry_ledger()) == {"unconfirmed": 1}
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    [result] = retry_ledger()
    assert (result.outcome, result.note, len(sandbox.messages("ledger.fifo"))) == ("retried", None, 1)
    assert sandbox.messages("ledger-dlq.fifo") == []


def test_on_fifo_an_edited_message_is_not_dropped_as_a_duplicate(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7
    dead_lettered(sandbox, 1, "ledger.fifo", group_id="a")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch", times=2)
    assert outcomes(retry_ledger()) == {"unconfirmed": 1}
    with failed.opened("ledger-dlq.fifo") as inspection:
        [dead_letter] = failed.show(inspection, failed.select()).dead_letters
        edited = failed.edit(dead_letter, '{"id": 9}', sandbox.now)
        failed.retry_dead_letters(inspection, [edited], Routes(inspection.queue))
    assert [each.body for each in sandbox.messages("ledger.fifo")] == ['{"id":0}', '{"id": 9}']


# removal


def remove(*ids: str, where: tuple[str, ...] = ()) -> list[Result]:
    with failed.opened("orders-dlq") as inspection:
        return list(failed.remove(inspection, failed.select(ids, where, everything=not ids and not where)))


def test_dead_letters_are_removed(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M1
    ids = dead_lettered(sandbox, 25)
    assert [(result.id, result.outcome) for result in remove(ids[4], "unknown")] == [
        (ids[4], "deleted"), ("unknown", "failed"),
    ]  # fmt: skip
    assert outcomes(remove(where=("body.id < 10",))) == {"deleted": 9}
    assert places(sandbox) == (0, 15)
    sandbox.faults.add("throttle", times=None, chance=0.6)
    assert outcomes(remove()) == {"deleted": 15}


def test_dead_letters_that_could_not_be_deleted_are_reported(sandbox: Sandbox, gateway: Gateway) -> None:
    dead_lettered(sandbox, 10)
    with failed.opened("orders-dlq") as inspection:
        shown = failed.show(inspection, failed.select())
        sandbox.faults.add("partial_failure", operation="DeleteMessageBatch", times=1)
        counts = outcomes(failed.remove_dead_letters(inspection, list(shown.dead_letters)))
    assert counts["failed"] > 0
    assert places(sandbox) == (0, counts["failed"])


def test_without_a_record_at_most_the_number_that_was_shown_is_retried(sandbox: Sandbox) -> None:  # SPEC M3
    sandbox.queue("orders", dead_letter="orders-dlq")
    for _ in range(3):
        put(sandbox)
    queue = failed.find("orders-dlq")
    for _ in range(2):
        put(sandbox)
    selection = failed.select(everything=True).as_previewed(queue, is_shown=True)
    with failed.opened(queue) as inspection:
        assert len(list(failed.retry(inspection, selection, Routes(queue, "orders")))) == 3
        assert inspection.newer == 2
    assert places(sandbox) == (3, 2)


def test_messages_that_fail_again_during_a_retry_of_all_are_left(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    dead_lettered(sandbox, 2)
    sandbox.advance(60)
    queue = failed.find("orders-dlq")
    sandbox.advance(60)
    later = dead_lettered(sandbox, 1)
    selection = failed.select(everything=True).as_previewed(queue, is_shown=False)
    with failed.opened(queue) as inspection:
        assert len(list(failed.retry(inspection, selection, Routes(queue)))) == 2
        assert inspection.newer == 1
    assert [each.id for each in sandbox.messages("orders-dlq")] == later


# archives of what may have been applied


def removed(sandbox: Sandbox, folder: Path, *faults: str) -> tuple[Path, dict[str, int]]:
    """Remove all into an archive while faults strike the deletes; return its path, and the outcomes."""
    archive = failed.ArchiveFile(folder / "removed.jsonl")
    with failed.opened("orders-dlq") as inspection:
        dead_letters = [each for polled in inspection.polls() for each in polled]
        for fault in faults:
            sandbox.faults.add(fault, operation="DeleteMessageBatch")
        results = failed.remove_dead_letters(inspection, dead_letters, archive)
    archive.close()
    return archive.path, outcomes(results)


def test_what_may_be_deleted_is_neither_kept_nor_restored_unasked(
    sandbox: Sandbox, gateway: Gateway, tmp_path: Path
) -> None:  # SPEC M6
    ids = dead_lettered(sandbox, 3)
    archive, counts = removed(sandbox, tmp_path, "lost_answer", "denied")
    assert (counts, sandbox.messages("orders-dlq")) == ({"unconfirmed": 3}, [])
    queue, asked = failed.find("orders-dlq"), list[int]()
    left = list(failed.restore(archive, queue, twice=lambda count: bool(asked.append(count))))
    assert ({each.outcome for each in left}, asked) == ({"unconfirmed"}, [3])
    assert "it may be in orders-dlq already: its removal was not confirmed" in str(left[0].error)
    assert {each.outcome for each in failed.restore(archive, queue, twice=lambda _: True)} == {"restored"}
    assert [each.id for each in sandbox.messages("orders-dlq")] == ids


@pytest.mark.parametrize("fault", ["denied", "partial_failure"])
def test_what_was_not_deleted_is_not_restored(sandbox: Sandbox, gateway: Gateway, tmp_path: Path, fault: str) -> None:
    dead_lettered(sandbox, 10)
    archive, counts = removed(sandbox, tmp_path, fault)
    assert (counts["failed"] > 0, counts.get("deleted", 0)) == (True, 10 - counts["failed"])
    sandbox.faults.clear()
    if fault == "denied":
        with pytest.raises(ConfigurationError, match="no dead letter to restore"):
            list(failed.restore(archive, failed.find("orders-dlq")))
    else:
        assert outcomes(list(failed.restore(archive, failed.find("orders-dlq")))) == {"restored": counts["deleted"]}
    assert sorted(json.loads(each.body)["id"] for each in sandbox.messages("orders-dlq")) == list(range(10))


def test_a_removal_that_was_killed_before_the_delete_is_not_doubled_unasked(
    sandbox: Sandbox, gateway: Gateway, tmp_path: Path
) -> None:  # SPEC M6
    """An archive of the first version does not tell what was deleted: all is restored."""
    dead_lettered(sandbox, 2)
    archive = failed.ArchiveFile(tmp_path / "removed.jsonl")
    with failed.opened("orders-dlq") as inspection:
        dead_letters = [each for polled in inspection.polls() for each in polled]
        assert failed.remove_dead_letters(inspection, dead_letters[:1], archive)[0].outcome == "deleted"
        archive.add(dead_letters[1:])  # and the process is killed
    archive.close()
    queue = failed.find("orders-dlq")
    assert outcomes(list(failed.restore(archive.path, queue))) == {"restored": 1, "unconfirmed": 1}
    assert len(sandbox.messages("orders-dlq")) == 2
    archive.path.with_name("removed.jsonl.restored").unlink()
    lines = [json.loads(line) for line in archive.path.read_text().splitlines()]
    archive.path.write_text("\n".join(json.dumps({**line, "v": 1}) for line in lines if "deleted" not in line))
    assert outcomes(list(failed.restore(archive.path, queue))) == {"restored": 2}


def test_a_restore_that_was_not_confirmed_is_not_doubled_unasked(
    sandbox: Sandbox, gateway: Gateway, tmp_path: Path
) -> None:  # SPEC M6
    dead_lettered(sandbox, 2)
    archive, _ = removed(sandbox, tmp_path)
    queue = failed.find("orders-dlq")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    sandbox.faults.add("denied", operation="SendMessageBatch")
    assert outcomes(list(failed.restore(archive, queue))) == {"unconfirmed": 2}
    again = list(failed.restore(archive, queue))
    assert outcomes(again) == {"unconfirmed": 2}
    assert "it may be in orders-dlq already: its send to orders-dlq at " in str(again[0].error)
    assert len(sandbox.messages("orders-dlq")) == 2
