"""Crashes, timeouts, throttling, and lost answers in each ack mode: the table of docs/guides/crashes.md."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Fixed, Message, consumer
from tarry.testing import Report, Sandbox
from tarry.world import Interrupted, current

VISIBILITY = 180


def exits() -> None:
    os._exit(1)


def runs_into_the_timeout() -> None:
    while True:
        with contextlib.suppress(Interrupted):
            current().clock.sleep(60)


ENDS = pytest.mark.parametrize("end", [exits, runs_into_the_timeout], ids=["crash", "timeout"])
MODES = pytest.mark.parametrize(
    "settings", [{}, {"ack": "eager"}, {"isolate": False}], ids=["on_return", "eager", "not isolated"]
)
QUEUES = pytest.mark.parametrize("queue", ["orders", "orders.fifo"])


class ConsumerRun:
    """A queue with a consumer whose handler calls ``work``, and the runs of each message by its body."""

    def __init__(
        self, sandbox: Sandbox, work: Callable[[Message], None], queue: str = "orders", window: int = 0, **settings: Any
    ) -> None:
        self.sandbox, self.queue = sandbox, queue
        self.runs: Counter[str] = Counter()
        self.deliveries: dict[str, list[int]] = {}

        @consumer(**{"backoff": Fixed(30), **settings})
        def handler(message: Message) -> None:
            self.runs[message.body] += 1
            self.deliveries.setdefault(message.body, []).append(message.receive_count)
            work(message)

        self.dead_letter_queue = "orders-dlq.fifo" if queue.endswith(".fifo") else "orders-dlq"
        sandbox.queue(queue, dead_letter=self.dead_letter_queue, visibility_timeout=VISIBILITY)
        sandbox.connect(handler, queue, batch_size=10, window=window, timeout=30)

    def send(self, *names: str) -> None:
        """Send messages; on FIFO each has its own group."""
        for name in names:
            fifo: Any = {"group_id": name, "deduplication_id": name} if self.queue.endswith(".fifo") else {}
            self.sandbox.send(self.queue, name, **fifo)

    def of(self, *names: str) -> "ConsumerRun":
        self.send(*names)
        self.report: Report = self.sandbox.run()
        return self

    @property
    def dead(self) -> list[str]:
        return [dead_letter.body for dead_letter in self.sandbox.messages(self.dead_letter_queue)]


def once(name: str, end: Callable[[], None], seconds: float = 0) -> Callable[[Message], None]:
    """Return work of ``seconds`` for each message that calls ``end`` in the first run of the message ``name``."""
    ended: list[str] = []

    def work(message: Message) -> None:
        current().clock.sleep(seconds)
        if message.body == name and not ended:
            ended.append(name)
            end()

    return work


# crashes


@ENDS
@MODES
@QUEUES
def test_after_a_crash_the_whole_batch_is_redelivered(
    end: Callable[[], None], settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # PLATFORM 11
    """The batch comes back when its visibility timeout ends, including messages that finished just before the crash."""
    run = ConsumerRun(sandbox, once("b", end), queue, **settings).of("a", "b", "c")
    assert run.deliveries["b"] == [1, 2]
    assert run.deliveries["c"] == [2]
    assert run.report.count("COMMITTED") == 3
    assert sandbox.elapsed >= VISIBILITY


@ENDS
@QUEUES
def test_by_default_messages_finished_before_a_crash_run_again(
    end: Callable[[], None], queue: str, sandbox: Sandbox
) -> None:  # SPEC G3
    run = ConsumerRun(sandbox, once("d", end, seconds=2), queue).of("a", "b", "c", "d")
    assert run.runs == {"a": 2, "b": 2, "c": 2, "d": 2}


@ENDS
@QUEUES
def test_with_eager_acks_messages_finished_a_second_before_a_crash_stay_done(
    end: Callable[[], None], queue: str, sandbox: Sandbox
) -> None:  # SPEC G3
    """Up to ten acknowledged messages wait for a second before they are deleted."""
    run = ConsumerRun(sandbox, once("d", end, seconds=2), queue, ack="eager").of("a", "b", "c", "d")
    assert run.runs == {"a": 1, "b": 1, "c": 1, "d": 2}


@ENDS
def test_fresh_messages_stay_done_before_a_redelivered_message_that_crashes_again(
    end: Callable[[], None], sandbox: Sandbox
) -> None:  # SPEC G4
    def work(message: Message) -> None:
        if message.body == "poison" and message.receive_count < 3:
            end()

    run = ConsumerRun(sandbox, work, window=60)
    run.send("poison")
    sandbox.advance(60 + VISIBILITY - 10)
    run.of("a", "b")
    batches = [event.fields["delivery_ids"] for event in run.report.events if event.what == "invoked"]
    assert [len(batch) for batch in batches] == [1, 3, 1]
    assert run.runs == {"poison": 3, "a": 1, "b": 1}


@ENDS
def test_without_isolation_messages_behind_one_that_crashes_are_dead_lettered_without_a_run(
    end: Callable[[], None], sandbox: Sandbox
) -> None:  # SPEC G4
    run = ConsumerRun(sandbox, lambda message: end() if message.body == "poison" else None, isolate=False)
    assert run.of("poison", "a", "b").dead == ["poison", "a", "b"]
    assert run.runs == {"poison": 15}


@QUEUES
@MODES
def test_delays_and_dead_letters_that_sqs_has_accepted_hold_after_a_crash(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC A2, F4
    """The delay holds; the finished message runs again, because the function returned no response."""

    def work(message: Message) -> None:
        if message.body == "delayed" and message.receive_count == 1:
            message.retry(delay=600)

    run = ConsumerRun(sandbox, work, queue, **settings)
    sandbox.faults.add("crash_after", operation="ChangeMessageVisibilityBatch")
    run.of("a", "delayed")
    assert run.report.count("COMMITTED") == 2
    assert run.runs["delayed"] == 2
    assert 600 <= sandbox.elapsed < 610


# throttling


@MODES
@QUEUES
def test_a_batch_that_lambda_throttles_is_redelivered_without_a_run(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # PLATFORM 15
    """Lambda retries until the visibility timeout ends."""
    run = ConsumerRun(sandbox, lambda _: None, queue, **settings)
    sandbox.faults.add("throttled", times=None)
    run.send("a", "b")
    sandbox.advance(VISIBILITY)
    sandbox.faults.clear()
    run.of()
    assert run.deliveries == {"a": [2], "b": [2]}
    assert run.dead == []


@pytest.mark.parametrize("fault", ["throttle", "lost_answer", "hang"])
@QUEUES
def test_a_message_whose_eager_delete_fails_is_left_to_lambda(
    fault: str, queue: str, sandbox: Sandbox
) -> None:  # SPEC G3
    sandbox.faults.add(fault, operation="DeleteMessageBatch", times=None)
    run = ConsumerRun(sandbox, lambda _: None, queue, ack="eager").of(*"abcdefghij")
    assert run.runs == dict.fromkeys("abcdefghij", 1)
    assert run.report.count("COMMITTED") == 10


@MODES
@QUEUES
def test_a_message_whose_delay_is_throttled_waits_for_the_visibility_timeout(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC G1
    sandbox.faults.add("throttle", operation="ChangeMessageVisibilityBatch", times=None)
    run = ConsumerRun(
        sandbox, lambda message: message.retry() if message.receive_count == 1 else None, queue, **settings
    )
    run.of("a")
    assert run.runs == {"a": 2}
    assert VISIBILITY <= sandbox.elapsed < VISIBILITY + 5


@MODES
@QUEUES
def test_a_delay_holds_although_the_answer_is_lost(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC G1
    sandbox.faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=None)
    run = ConsumerRun(
        sandbox, lambda message: message.retry() if message.receive_count == 1 else None, queue, **settings
    )
    run.of("a")
    assert run.runs == {"a": 2}
    assert 30 <= sandbox.elapsed < 45


@MODES
@QUEUES
def test_a_message_whose_dead_letter_is_throttled_waits_and_is_tried_again(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC F4
    sandbox.faults.add("throttle", operation="SendMessageBatch", times=2)
    run = ConsumerRun(sandbox, lambda message: message.reject("no"), queue, **settings).of("a")
    assert run.dead == ["a"]
    assert run.runs == {"a": 2}


@pytest.mark.parametrize(("queue", "copies"), [("orders", 2), ("orders.fifo", 1)])
@MODES
def test_a_dead_letter_whose_answer_is_lost_is_sent_twice_but_on_fifo_exists_once(
    settings: dict[str, Any], queue: str, copies: int, sandbox: Sandbox
) -> None:  # SPEC E6, E7, J6
    """The client sends it again. On FIFO, SQS deduplicates it; on a standard queue, both have the same stable id."""
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    run = ConsumerRun(sandbox, lambda message: message.reject("no"), queue, **settings).of("a")
    assert run.dead == ["a"] * copies
    assert len({dead_letter.id for dead_letter in sandbox.messages(run.dead_letter_queue)}) == 1
    assert run.runs == {"a": 1}
