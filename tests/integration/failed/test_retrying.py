"""Letters sent back: send, confirm, delete; what goes wrong on the way, and what the consumer makes of them."""

import json
from collections import Counter
from typing import Any

import pytest

from tarry import DeadLetter, Fixed, Message, RetryInPlace, SendAgain, consumer, failed
from tarry.failed import Result, Routes
from tarry.message import delivery_of
from tarry.testing import Sandbox
from tests.unit.failed.letters import record_of
from tests.wire import arn


class Gateway:
    """A handler whose downstream is down until it is mended."""

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


def die(sandbox: Sandbox, count: int = 3, queue: str = "orders", **more: Any) -> list[str]:
    """Messages that have died; their ids."""
    ids = [sandbox.send(queue, {"id": index}, **more) for index in range(count)]
    sandbox.run()
    return ids


def put(sandbox: Sandbox, body: str = "{}", record: Any = None, queue: str = "orders-dlq", **more: Any) -> str:
    """Puts a letter into the dead-letter queue by hand; SQS's id."""
    told = {} if record is None else {"Tarry": {"DataType": "String", "StringValue": json.dumps(record)}}
    sent = {"MessageBody": body, "MessageAttributes": {**more.pop("attributes", {}), **told}, **more}
    answer = sandbox.sqs.call("SendMessage", {"QueueUrl": sandbox.sqs.url(queue), **sent})
    return str(answer["MessageId"])


def retry(*ids: str, where: tuple[str, ...] = (), to: str | None = None, known: tuple[str, ...] = ()) -> list[Result]:
    """All, if nothing is named."""
    with failed.opened("orders-dlq") as look:
        selection = failed.select(ids, where, everything=not ids and not where)
        return list(failed.retry(look, selection, Routes(look.queue, to, known)))


def outcomes(results: list[Result]) -> dict[str, int]:
    return dict(Counter(result.outcome for result in results))


def places(sandbox: Sandbox) -> tuple[int, int]:
    """How many are in the queue and in the dead-letter queue; none of them held."""
    assert all(letter.hidden_seconds == 0 for letter in sandbox.messages("orders-dlq"))
    return len(sandbox.messages("orders")), len(sandbox.messages("orders-dlq"))


# what becomes of them


def test_what_was_mended_is_committed(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    ids = die(sandbox)
    gateway.is_down = False
    assert outcomes(retry()) == {"retried": 3}
    report = sandbox.run()
    assert sorted(gateway.done) == [0, 1, 2]
    assert places(sandbox) == (0, 0)
    assert report.story(ids[0])[-1].state == "COMMITTED"


def test_what_dies_again_is_there_with_its_new_error_and_all_of_its_history(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC M3, F2, K3
    """It begins anew: a fresh set of attempts, and the total goes on."""
    [order] = die(sandbox, 1)
    retry()
    sandbox.run()
    assert [message.attempt for message in gateway.seen] == [1, 2, 1, 2]
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    assert (letter.id, letter.failure.attempts, letter.failure.reason) == (order, 4, "exhausted")
    assert letter.failure.message == "down, attempt 2"
    assert [entry["attempt"] for entry in letter.failure.history] == [2, 2]


def test_the_handler_is_told_what_it_died_of(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC K3
    die(sandbox, 1)
    gateway.is_down = False
    retry()
    sandbox.run()
    failure = gateway.seen[-1].failure
    assert failure is not None
    assert (failure.attempts, failure.type) == (2, "ConnectionError")


def test_a_copy_that_sqs_moved_by_itself_gets_its_attempts_and_steps_back(sandbox: Sandbox) -> None:  # SPEC F2, E3
    """It was sent again before it killed its process: its counters were used up, and it would die of them at once."""
    gateway = Gateway(on_failure=[RetryInPlace(), SendAgain("slow", times=1), DeadLetter()])
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(gateway.handler, "orders")
    used_up = record_of("{}", carried=900, hops=15, steps={"slow": 1}, attempts=900)
    put(sandbox, "{}", used_up)
    assert outcomes(retry()) == {"retried": 1}
    sandbox.run(check=False)
    assert [message.attempt for message in gateway.seen] == [1, 2, 3]  # twice, and once as the copy that is sent again
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    assert letter.failure.attempts == 903


def test_body_attributes_and_group_are_kept(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    kinds = {
        "tenant": {"DataType": "String.label", "StringValue": "acme"},
        "weight": {"DataType": "Number.kg", "StringValue": "1.50"},
        "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    put(sandbox, '{"id":  1}', record_of('{"id":  1}'), attributes=kinds, MessageGroupId="fair")
    retry()
    [stored] = sandbox.sqs.peek("orders")
    assert (stored.body, stored.group) == ('{"id":  1}', "fair")
    assert {name: stored.attributes[name] for name in kinds} == kinds


def test_without_room_for_a_record_it_goes_all_the_same_and_that_is_said(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC F3
    full = {f"a{index}": {"DataType": "String", "StringValue": "x"} for index in range(10)}
    put(sandbox, "{}", attributes=full)
    [result] = retry(to="orders")
    assert (result.outcome, "without a record" in str(result.note)) == ("retried", True)
    assert places(sandbox) == (1, 0)


# which


def test_ids_go_in_the_order_given_and_what_is_not_there_is_said(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    ids = die(sandbox, 25)
    results = retry(ids[20], "nobody", ids[3], ids[11])
    assert [(result.id, result.outcome) for result in results] == [
        (ids[20], "retried"), ("nobody", "failed"), (ids[3], "retried"), (ids[11], "retried"),
    ]  # fmt: skip
    assert results[1].error == "no such dead letter was found in orders-dlq: scanned 25 of about 25"
    assert [letter.id for letter in sandbox.messages("orders")] == [ids[20], ids[3], ids[11]]
    assert places(sandbox) == (3, 22)


def test_sqss_own_id_is_an_id_too(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    die(sandbox, 2)
    delivery_id = sandbox.messages("orders-dlq")[1].delivery_id
    assert outcomes(retry(delivery_id)) == {"retried": 1}


def test_those_that_a_filter_matches(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    die(sandbox, 30)
    assert outcomes(retry(where=("body.id >= 10", "body.id < 15"))) == {"retried": 5}
    assert places(sandbox) == (5, 25)


def test_undecodable_ones_are_left(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M4
    put(sandbox, "{x", record_of("{x", "broken", reason="undecodable"))
    [result] = retry()
    assert (result.outcome, result.note) == ("skipped", "no handler can read its body: edit it, or remove it")
    [result] = retry("broken")
    assert (result.outcome, result.hindrance) == ("failed", "undecodable")
    assert places(sandbox) == (0, 1)


def test_an_edited_one_goes_with_its_new_body_and_its_old_id(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3, M4
    put(sandbox, "{x", record_of("{x", "broken", reason="undecodable"))
    gateway.is_down = False
    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select(["broken"])).dead_letters
        edited = failed.edit(letter, '{"id": 7}', sandbox.now)
        assert outcomes(failed.retry_dead_letters(look, [edited], Routes(look.queue))) == {"retried": 1}
    sandbox.run(check=False)
    assert gateway.done == [7]
    assert gateway.seen[0].id == "broken"
    assert delivery_of(gateway.seen[0]).envelope is not None
    assert delivery_of(gateway.seen[0]).envelope.edited is not None


def test_that_it_was_edited_is_still_known_when_it_has_died_again(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 1)
    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select()).dead_letters
        failed.retry_dead_letters(look, [failed.edit(letter, '{"id": 8}', sandbox.now)], Routes(look.queue))
    sandbox.run(check=False)
    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select()).dead_letters
    assert (letter.id, letter.body) == (gateway.seen[0].id, '{"id": 8}')
    assert letter.edited is not None


def test_a_letter_is_not_offered_twice_in_a_run(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    """Its consumer is quick, and it dies again while the run goes on."""
    ids = die(sandbox, 15)
    with failed.opened("orders-dlq") as look:
        results = []
        for result in failed.retry(look, failed.select(everything=True), Routes(look.queue)):
            results.append(result)
            sandbox.advance(60)
        assert look.not_offered > 0
    assert sorted(result.id for result in results) == sorted(ids)


def test_of_two_letters_with_one_id_one_goes(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    for _ in range(2):
        put(sandbox, "{}", record_of("{}", "double"))
    assert outcomes(retry()) == {"retried": 1}
    assert places(sandbox) == (1, 1)


# where to


def test_a_letter_without_an_origin_stays_and_asks_for_one(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    unknown = put(sandbox)
    [result] = retry()
    assert (result.outcome, result.hindrance) == ("failed", "nowhere")
    assert "--to QUEUE" in str(result.error)
    with pytest.raises(failed.NowhereToGo, match="--to QUEUE"):
        retry(unknown)
    assert places(sandbox) == (0, 1)
    assert outcomes(retry(to="orders")) == {"retried": 1}


@pytest.mark.parametrize(
    "origin", ["arn:aws:sqs:us-east-1:666666666666:orders", arn("payroll"), arn("orders-dlq"), "x"]
)
def test_an_origin_that_is_no_source_is_not_followed(
    sandbox: Sandbox, gateway: Gateway, origin: str
) -> None:  # SPEC M3
    sandbox.queue("payroll")
    put(sandbox, "{}", {**record_of("{}", "sly"), "origin": origin})
    with pytest.raises(failed.NowhereToGo, match="no source of orders-dlq"):
        retry("sly")
    assert places(sandbox) == (0, 1)


def test_with_one_of_several_that_has_nowhere_to_go_none_goes(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    [known] = die(sandbox, 1)
    unknown = put(sandbox)
    with pytest.raises(failed.NowhereToGo):
        retry(known, unknown)
    assert places(sandbox) == (0, 2)


def test_a_queue_of_the_template_is_trusted_in_this_account(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    sandbox.queue("payroll")
    put(sandbox, "{}", {**record_of("{}"), "origin": "arn:aws:sqs:us-east-1:666666666666:payroll"})
    assert outcomes(retry(known=("payroll",))) == {"retried": 1}
    assert len(sandbox.messages("payroll")) == 1


def test_where_sqs_does_not_list_the_sources_their_own_redrive_policy_is_asked(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC M3
    die(sandbox, 1)
    sandbox.faults.add("denied", operation="ListDeadLetterSourceQueues", times=None)
    assert outcomes(retry()) == {"retried": 1}


def test_letters_are_not_sent_to_where_they_are(sandbox: Sandbox, gateway: Gateway) -> None:
    with pytest.raises(failed.NowhereToGo, match="the dead-letter queue itself"):
        retry(to="orders-dlq")


def test_a_target_that_is_not_there_is_refused_before_anything_is_touched(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 1)
    with pytest.raises(failed.UnknownQueue):
        retry(to="nope")
    assert places(sandbox) == (0, 1)


# what goes wrong


def test_a_send_without_an_answer_leaves_the_letter_and_says_that_it_may_be_double(
    sandbox: Sandbox, gateway: Gateway
) -> None:  # SPEC E6, J6
    die(sandbox, 1)
    sandbox.faults.add("lost_answer", operation="SendMessageBatch", times=2)
    [result] = retry()
    assert result.outcome == "failed"
    assert "not confirmed" in str(result.error)
    assert "it may be in orders, and is still in orders-dlq" in str(result.error)
    assert len(sandbox.messages("orders-dlq")) == 1


def test_a_wrong_md5_confirms_nothing(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    die(sandbox, 1)
    sandbox.faults.add("garbled", operation="SendMessageBatch", times=2)
    [result] = retry()
    assert (result.outcome, "not confirmed" in str(result.error)) == ("failed", True)
    assert len(sandbox.messages("orders-dlq")) == 1


def test_what_sqs_refuses_of_a_batch_stays(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    die(sandbox, 10)
    sandbox.faults.add("partial_failure", operation="SendMessageBatch", times=1)
    results = retry()
    counts = outcomes(results)
    assert counts["retried"] + counts["failed"] == 10
    assert places(sandbox) == (counts["retried"], counts["failed"])


def test_an_sqs_that_throttles_is_waited_for(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 35)
    sandbox.faults.add("throttle", times=None, chance=0.6)
    assert outcomes(retry()) == {"retried": 35}
    sandbox.faults.clear()
    assert len(sandbox.messages("orders-dlq")) == 0


def test_without_permission_to_send_nothing_is_touched(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 25)
    sandbox.faults.add("denied", operation="SendMessageBatch", times=None)
    results = retry()
    assert {result.hindrance for result in results} == {"denied"}
    assert len(results) == 10  # nor would the others be sent
    assert "sqs:SendMessage on orders is not allowed" in str(results[0].error)
    sandbox.faults.clear()
    assert places(sandbox) == (0, 25)


def test_without_permission_to_delete_nothing_is_doubled(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 3)
    sandbox.faults.add("denied", operation="DeleteMessageBatch", times=None)
    with pytest.raises(failed.NotAllowed, match="sqs:DeleteMessage on orders-dlq"):
        retry()
    sandbox.faults.clear()
    assert places(sandbox) == (0, 3)


def test_a_delete_that_fails_is_repeated_and_then_said(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    [order] = die(sandbox, 1)
    with failed.opened("orders-dlq") as look:
        failed.check_may_delete(look)
        [letter] = failed.show(look, failed.select([order])).dead_letters
        sandbox.faults.add("unreachable", operation="DeleteMessageBatch", times=None)
        [result] = failed.retry_dead_letters(look, [letter], Routes(look.queue))
        assert result.outcome == "failed"
        assert "it is in orders, and could not be deleted from orders-dlq" in str(result.error)
        sandbox.faults.clear()


def test_a_delete_whose_answer_is_lost_is_done_again(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    [order] = die(sandbox, 1)
    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select([order])).dead_letters
        sandbox.faults.add("lost_answer", operation="DeleteMessageBatch", times=2)
        assert outcomes(failed.retry_dead_letters(look, [letter], Routes(look.queue))) == {"retried": 1}
    assert places(sandbox) == (1, 0)


def test_a_letter_that_somebody_else_took_meanwhile_is_not_sent(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC E6
    [order] = die(sandbox, 1)
    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select([order])).dead_letters
        sandbox.faults.add("unreachable", operation="ChangeMessageVisibilityBatch", times=None)
        sandbox.sleep(60)  # it could not be held
        url = sandbox.sqs.url("orders-dlq")
        [taken] = sandbox.sqs.call("ReceiveMessage", {"QueueUrl": url})["Messages"]
        sandbox.sqs.call("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": taken["ReceiptHandle"]})
        sandbox.faults.clear()
        [result] = failed.retry_dead_letters(look, [letter], Routes(look.queue))
    assert (result.outcome, "somebody else" in str(result.error)) == ("failed", True)
    assert places(sandbox) == (0, 0)


def test_a_body_that_the_queue_does_not_take_stays(sandbox: Sandbox) -> None:  # PLATFORM 17
    sandbox.queue("orders", dead_letter="orders-dlq", maximum_message_size=1024)
    put(sandbox, "x" * 2_000, record_of("x" * 2_000))
    [result] = retry()
    assert (result.outcome, "orders takes at most 1024" in str(result.error)) == ("failed", True)
    assert places(sandbox) == (0, 1)


# FIFO


@pytest.fixture
def ledger(sandbox: Sandbox) -> Gateway:
    gateway = Gateway()
    sandbox.queue("ledger.fifo", dead_letter="ledger-dlq.fifo")
    sandbox.connect(gateway.handler, "ledger.fifo")
    return gateway


def retry_ledger() -> list[Result]:
    with failed.opened("ledger-dlq.fifo") as look:
        return list(failed.retry(look, failed.select(everything=True), Routes(look.queue)))


def test_on_fifo_groups_go_back_in_their_order(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7
    die(sandbox, 25, "ledger.fifo", group_id="a")
    ledger.is_down = False
    assert outcomes(retry_ledger()) == {"retried": 25}
    sandbox.run()
    assert ledger.done == list(range(25))


def test_on_fifo_nothing_overtakes_what_was_not_sent(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC H1
    die(sandbox, 5, "ledger.fifo", group_id="a")
    sandbox.faults.add("unavailable", operation="SendMessageBatch", times=1)
    sandbox.faults.add("garbled", operation="SendMessageBatch", times=1)
    results = retry_ledger()
    assert outcomes(results) == {"failed": 5}
    assert all("behind" in str(result.error) for result in results[1:])


def test_on_fifo_a_send_that_is_repeated_is_swallowed(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7
    die(sandbox, 1, "ledger.fifo", group_id="a")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch", times=2)
    assert outcomes(retry_ledger()) == {"failed": 1}
    assert outcomes(retry_ledger()) == {"retried": 1}
    assert len(sandbox.messages("ledger.fifo")) == 1
    assert len(sandbox.messages("ledger-dlq.fifo")) == 0


def test_on_fifo_an_edited_one_is_not_taken_for_the_one_before(sandbox: Sandbox, ledger: Gateway) -> None:  # SPEC E7
    die(sandbox, 1, "ledger.fifo", group_id="a")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch", times=2)
    assert outcomes(retry_ledger()) == {"failed": 1}
    with failed.opened("ledger-dlq.fifo") as look:
        [letter] = failed.show(look, failed.select()).dead_letters
        failed.retry_dead_letters(look, [failed.edit(letter, '{"id": 9}', sandbox.now)], Routes(look.queue))
    assert [letter.body for letter in sandbox.messages("ledger.fifo")] == ['{"id":0}', '{"id": 9}']


# removing


def remove(*ids: str, where: tuple[str, ...] = ()) -> list[Result]:
    with failed.opened("orders-dlq") as look:
        return list(failed.remove(look, failed.select(ids, where, everything=not ids and not where)))


def test_letters_are_removed(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M1
    ids = die(sandbox, 25)
    assert [(result.id, result.outcome) for result in remove(ids[4], "nobody")] == [
        (ids[4], "deleted"), ("nobody", "failed"),
    ]  # fmt: skip
    assert outcomes(remove(where=("body.id < 10",))) == {"deleted": 9}
    assert places(sandbox) == (0, 15)
    sandbox.faults.add("throttle", times=None, chance=0.6)
    assert outcomes(remove()) == {"deleted": 15}


def test_without_permission_nothing_is_removed(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 3)
    sandbox.faults.add("denied", operation="DeleteMessageBatch", times=None)
    with pytest.raises(failed.NotAllowed):
        remove()


def test_what_could_not_be_deleted_is_said(sandbox: Sandbox, gateway: Gateway) -> None:
    die(sandbox, 10)
    with failed.opened("orders-dlq") as look:
        shown = failed.show(look, failed.select())
        sandbox.faults.add("partial_failure", operation="DeleteMessageBatch", times=1)
        counts = outcomes(failed.remove_dead_letters(look, list(shown.dead_letters)))
    assert counts["failed"] > 0
    assert places(sandbox) == (0, counts["failed"])
