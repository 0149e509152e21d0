"""Dead letters sent back to their queues: send, confirm, delete; canaries and rates; errors on the way."""

from typing import Any

import pytest

from tarry import ConfigurationError, failed
from tarry.failed import Canary, CanaryReturned, Limits, Result, Routes, TooManyReturned
from tarry.testing import Sandbox
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.testing.fault_injection import REFUSALS
from tests.integration.failed.sandboxed import (
    Gateway,
    dead_lettered,
    fill,
    outcomes,
    places,
    put,
    remove,
    retried,
    retry,
    there,
)
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

SEND, DELETE = "SendMessageBatch", "DeleteMessageBatch"

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
    assert (dead_letter.id, failure.attempts, failure.reason, failure.message) == (
        order, 4, "exhausted", "down, attempt 2",
    )  # fmt: skip
    assert [entry["attempt"] for entry in failure.history] == [2, 2]
    gateway.is_down = False
    retry()
    assert sandbox.run().story(order)[-1].state == "COMMITTED"
    assert (gateway.done, places(sandbox)) == ([0], (0, 0))


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
    put(sandbox, attributes={f"a{index}": {"DataType": "String", "StringValue": "x"} for index in range(10)})
    [result] = retry(to="orders")
    assert (result.outcome, "without its tarry envelope" in str(result.note)) == ("retried", True)
    assert places(sandbox) == (1, 0)


# selection


def test_ids_and_conditions_select_and_an_unknown_id_is_reported(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    """Ids are retried in their order; the message id of SQS is one too."""
    ids = dead_lettered(sandbox, 25)
    delivery_id = next(each.delivery_id for each in sandbox.messages("orders-dlq") if each.id == ids[11])
    assert [(each.id, each.outcome, each.error) for each in retry(ids[20], "unknown", ids[3], delivery_id)] == [
        (ids[20], "retried", None),
        ("unknown", "failed", "not found in orders-dlq: scanned 25 of about 25"),
        (ids[3], "retried", None),
        (ids[11], "retried", None),
    ]
    assert [message.id for message in sandbox.messages("orders")] == [ids[20], ids[3], ids[11]]
    assert outcomes(retry(where=("body.id >= 12", "body.id < 15"))) == {"retried": 3}
    assert places(sandbox) == (6, 19)


def test_undecodable_dead_letters_are_retried_only_after_an_edit_with_their_old_id(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC M3, M4
    """If one is dead-lettered again, it has the time of its edit."""
    put(sandbox, "{x", envelope_of("{x", "broken", reason="undecodable"))
    [result] = retry()
    assert (result.outcome, result.note) == ("skipped", "its body cannot be decoded: edit or remove it")
    [result] = retry("broken")
    assert (result.outcome, result.hindrance, places(sandbox)) == ("failed", "undecodable", (0, 1))
    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = failed.show(inspection, failed.select(["broken"])).dead_letters
        edited = failed.edit(dead_letter, '{"id": 7}', sandbox.now)
        assert outcomes(failed.retry_dead_letters(inspection, [edited], Routes(inspection.queue))) == {"retried": 1}
    sandbox.run(check=False)
    assert (gateway.seen[0].id, gateway.seen[0].body) == ("broken", '{"id": 7}')
    with failed.opened("orders-dlq") as inspection:
        [again] = failed.show(inspection, failed.select()).dead_letters
    assert (again.id, again.body, again.edited is not None) == ("broken", '{"id": 7}', True)


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


@pytest.mark.parametrize("concurrency", [1, 4])
def test_two_dead_letters_with_one_id_are_sent_once(sandbox: Sandbox, concurrency: int) -> None:  # SPEC M3
    fill(sandbox, 30)
    fill(sandbox, 30)
    with failed.opened("orders-dlq") as inspection:
        results = retried(inspection, concurrency=concurrency)
    assert sorted(result.id for result in results) == there(sandbox) == there(sandbox, "orders")
    assert (places(sandbox), inspection.handled.repeated) == ((30, 30), 30)


def test_all_are_those_of_the_preview_by_their_records_or_without_one_by_their_number(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC M3
    dead_lettered(sandbox, 2)
    sandbox.advance(60)
    queue = failed.find("orders-dlq")
    sandbox.advance(60)
    later = dead_lettered(sandbox, 1)
    for is_shown, done, left in ((False, 2, 1), (True, 3, 2)):
        selection = failed.select(everything=True).as_previewed(queue, is_shown=is_shown)
        with failed.opened(queue) as inspection:
            assert len(list(failed.retry(inspection, selection, Routes(queue, "orders")))) == done
            assert inspection.newer == left
        if not is_shown:
            assert there(sandbox) == later
            remove()
            for _ in range(3):
                put(sandbox)
            queue = failed.find("orders-dlq")
            for _ in range(2):
                put(sandbox)
    assert places(sandbox) == (5, 2)


# the target queue


def test_dead_letters_stay_until_their_target_is_known(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    unknown = put(sandbox)
    [result] = retry()
    assert (result.outcome, result.hindrance, "--to QUEUE" in str(result.error)) == ("failed", "nowhere", True)
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
def test_an_origin_that_is_not_a_source_is_refused_unless_its_queue_is_known_in_this_account(
    sandbox: Sandbox, gateway: Gateway, origin: str
) -> None:  # SPEC M3
    sandbox.queue("payroll")
    put(sandbox, "{}", {**envelope_of("{}", "sly"), "origin": origin})
    with pytest.raises(failed.NowhereToGo, match="not a source of orders-dlq"):
        retry("sly")
    assert places(sandbox) == (0, 1)
    put(sandbox, "{}", {**envelope_of("{}", "fine"), "origin": "arn:aws:sqs:us-east-1:666666666666:payroll"})
    assert outcomes(retry("fine", known=("payroll",))) == {"retried": 1}
    assert there(sandbox, "payroll") == ["fine"]


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
    sandbox: Sandbox, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, code: str, status: int
) -> None:  # SPEC M3
    """A role may not have the permission, and some emulators do not have the operation. `--to` always suffices."""
    dead_lettered(sandbox, 1)
    put(sandbox)
    monkeypatch.setitem(REFUSALS, "denied", SqsError(code, "no", status=status))
    sandbox.faults.add("denied", operation="ListDeadLetterSourceQueues", times=None)
    assert outcomes(retry()) == {"retried": 1, "failed": 1}
    assert outcomes(retry(to="orders")) == {"retried": 1}


# canaries and rates


def test_canaries_that_come_back_stop_the_run(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    dead_lettered(sandbox, 30)
    results: list[Result] = []
    waits: list[float] = []
    with pytest.raises(CanaryReturned) as raised:
        retry(canary=Canary(3, watching=lambda _, total: waits.append(total)), into=results)
    error = raised.value
    assert 1 <= len(error.ids) <= error.sent == 3
    assert str(error).startswith(f"{len(error.ids)} of 3 canaries came back to orders-dlq: no others were retried; ")
    assert str(error).endswith(f"; the failure record of {error.ids[0]} has the new error")
    assert {result.id for result in results if result.outcome == "retried"} >= set(error.ids)
    assert len(results) == 3
    assert waits[0] == pytest.approx(70, abs=1)  # 10 s between the attempts, and the visibility timeout
    sandbox.run()
    assert places(sandbox) == (0, 30)


def test_if_no_canary_comes_back_all_others_are_retried(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    dead_lettered(sandbox, 30)
    gateway.is_down = False
    began_at = sandbox.elapsed
    assert outcomes(retry(canary=Canary(3, within=300))) == {"retried": 30}
    assert 300 <= sandbox.elapsed - began_at < 330
    sandbox.run()
    assert (sorted(gateway.done), places(sandbox)) == (list(range(30)), (0, 0))


def test_a_canary_that_comes_back_without_a_failure_record_is_seen_by_its_id(sandbox: Sandbox) -> None:  # SPEC M3
    """SQS moves it, because its function never ends."""

    def crash(event: object, _: object) -> None:
        raise SystemExit

    fill(sandbox, 5, max_receive_count=1, visibility_timeout=6)
    sandbox.connect(crash, "orders", timeout=3)
    with pytest.raises(CanaryReturned):
        retry(canary=Canary(1, within=60))


def test_canaries_are_refused_where_they_could_not_be_seen(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    """On FIFO they are behind others, and SQS limits the messages in flight. Nothing is sent then."""
    fill(sandbox, 40)
    sandbox.queue("jobs.fifo", dead_letter="jobs-dlq.fifo")
    monkeypatch.setattr("tarry.failed.inspection.MAX_IN_FLIGHT", 30)
    with pytest.raises(ConfigurationError, match="among about 40 dead letters, since at most 30 can be in flight"):
        retry(canary=Canary(3))
    with pytest.raises(ConfigurationError, match="on FIFO it is behind"):
        retry(dlq="jobs-dlq.fifo", canary=Canary(1))
    assert places(sandbox) == (0, 40)


def test_the_time_to_watch_is_that_of_the_slowest_canary_unless_it_is_half_a_day(sandbox: Sandbox) -> None:  # SPEC M3
    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=30)
    put(sandbox, "{}", envelope_of("{}", "quick", first_failed_at="2026-11-21T08:21:00Z"))
    put(sandbox, "{}", envelope_of("{}", "slow", first_failed_at="2026-11-20T08:21:00Z"))
    with pytest.raises(ConfigurationError, match=r"retried for 24 h, .*\(--within 30m\)"):
        retry(canary=Canary(2))
    assert places(sandbox) == (0, 2)


def test_a_rate_spreads_the_sends(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M6
    dead_lettered(sandbox, 30)
    gateway.is_down = False
    began_at = sandbox.elapsed
    assert outcomes(retry(limits=Limits(rate=2), concurrency=3)) == {"retried": 30}
    assert 14 <= sandbox.elapsed - began_at <= 20  # two a second, and the polls at the end


def test_a_retry_stops_when_too_many_come_back(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M6
    dead_lettered(sandbox, 60)
    results: list[Result] = []
    with pytest.raises(TooManyReturned) as raised:
        retry(limits=Limits(rate=0.5, max_return=0.05), into=results)
    error = raised.value
    assert error.returned > 0.05 * error.retried
    assert error.retried == len(results) < 60
    sandbox.run()
    assert places(sandbox) == (0, 60)


def test_a_retry_by_group_makes_few_requests_and_sends_tens(sandbox: Sandbox) -> None:  # SPEC M6
    """Each receive of ten has two of the group; they are sent once there are ten."""
    fill(sandbox, 250, groups=5)
    for left in (250, 200, 150, 100, 50):
        with failed.opened("orders-dlq") as inspection:
            results = retried(inspection, group=f"group{left // 50 - 1}", concurrency=5)
            assert outcomes(results) == {"retried": 50}
        receives, sends, releases = left // 10, 5, (left - 50) // 10
        # Besides these, the check of the permission, look-ups, and a few receives of less than ten.
        assert inspection.requests <= receives + 2 * sends + releases + 20
    assert len(sandbox.messages("orders")) == 250


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
        sandbox.faults.add(fault, operation=SEND)
    results = retry()
    sandbox.faults.clear()
    assert [(each.id, each.outcome) for each in results] == [(each, "unconfirmed") for each in ids]
    assert "SQS did not confirm the send" in str(results[0].error)
    assert "it is still in orders-dlq, and may also be in orders" in str(results[0].error)
    assert places(sandbox) == (3 * copies, 3)


@pytest.mark.parametrize("fault", ["partial_failure", "throttle"])
def test_what_is_throttled_is_repeated_and_what_sqs_refuses_stays(
    sandbox: Sandbox, gateway: Gateway, fault: str
) -> None:  # SPEC E6
    """Throttled receives, sends, deletes and releases in turn; only a refusal of single messages is final."""
    dead_lettered(sandbox, 35)
    given: dict[str, Any] = {"times": None, "chance": 0.6} if fault == "throttle" else {"operation": SEND, "times": 1}
    sandbox.faults.add(fault, **given)
    counts = outcomes(retry(where=("body.id < 25",)))
    sandbox.faults.clear()
    assert ("failed" in counts, sum(counts.values())) == (fault == "partial_failure", 25)
    assert places(sandbox) == (counts["retried"], 35 - counts["retried"])


def test_without_permission_to_send_or_delete_nothing_is_changed(sandbox: Sandbox, gateway: Gateway) -> None:
    dead_lettered(sandbox, 25)
    sandbox.faults.add("denied", operation=SEND, times=None)
    results = retry()
    assert {result.hindrance for result in results} == {"denied"}
    assert len(results) == 10  # the others would be denied as well
    assert "sqs:SendMessage on orders is not allowed" in str(results[0].error)
    sandbox.faults.clear()
    sandbox.faults.add("denied", operation=DELETE, times=None)
    for work in (retry, remove):
        with pytest.raises(failed.NotAllowed, match="sqs:DeleteMessage on orders-dlq"):
            work()
    sandbox.faults.clear()
    assert places(sandbox) == (0, 25)


@pytest.mark.parametrize(("fault", "times"), [("lost_answer", 2), ("unreachable", None)])
def test_a_delete_that_fails_is_repeated_and_then_reported(
    sandbox: Sandbox, gateway: Gateway, fault: str, times: int | None
) -> None:  # SPEC E6
    dead_lettered(sandbox, 1)
    with failed.opened("orders-dlq") as inspection:
        failed.check_may_delete(inspection)
        sandbox.faults.add(fault, operation=DELETE, times=times)
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
    fill(sandbox, 1, body="x" * 2_000, maximum_message_size=1024)
    [result] = retry()
    assert (result.outcome, "the limit of orders is 1024 bytes" in str(result.error)) == ("failed", True)
    assert places(sandbox) == (0, 1)


# FIFO

LEDGER = "ledger-dlq.fifo"


@pytest.fixture
def ledger(sandbox: Sandbox) -> Gateway:
    return Gateway(sandbox, "ledger.fifo")


def test_on_fifo_messages_of_a_group_keep_their_order(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7
    dead_lettered(sandbox, 25, "ledger.fifo", group_id="a")
    ledger.is_down = False
    assert outcomes(retry(dlq=LEDGER)) == {"retried": 25}
    sandbox.run()
    assert ledger.done == list(range(25))


def test_on_fifo_no_message_overtakes_one_of_its_group_that_was_not_sent(
    sandbox: Sandbox, ledger: Gateway
) -> None:  # SPEC H1
    dead_lettered(sandbox, 5, "ledger.fifo", group_id="a")
    for fault in ("unavailable", "garbled"):
        sandbox.faults.add(fault, operation=SEND, times=1)
    results = retry(dlq=LEDGER)
    assert outcomes(results) == {"unconfirmed": 1, "failed": 4}
    assert all("behind" in str(result.error) for result in results[1:])


@pytest.mark.parametrize("edited", [(), ('{"id": 9}',)], ids=["as it was", "edited"])
def test_on_fifo_a_repeated_send_is_dropped_as_a_duplicate_unless_it_was_edited(
    sandbox: Sandbox, ledger: Gateway, edited: tuple[str, ...]
) -> None:  # SPEC E7, M6
    dead_lettered(sandbox, 1, "ledger.fifo", group_id="a")
    sandbox.faults.add("lost_answer", operation=SEND, times=2)
    assert outcomes(retry(dlq=LEDGER)) == {"unconfirmed": 1}
    sandbox.faults.add("lost_answer", operation=SEND)
    with failed.opened(LEDGER) as inspection:
        [dead_letter] = failed.show(inspection, failed.select()).dead_letters
        for body in edited:
            dead_letter = failed.edit(dead_letter, body, sandbox.now)
        [result] = failed.retry_dead_letters(inspection, [dead_letter], Routes(inspection.queue))
    assert (result.outcome, result.note, sandbox.messages(LEDGER)) == ("retried", None, [])
    assert [each.body for each in sandbox.messages("ledger.fifo")] == ['{"id":0}', *edited]
