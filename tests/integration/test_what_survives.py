"""What a crash, a timeout, a throttle and a lost answer do, in each ack mode: the table of docs/guides/crashes.md."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Fixed, Message, consumer
from tarry.execution.timeouts import Interrupted
from tarry.testing import Report, Sandbox
from tarry.world import current

VISIBILITY = 180


def dies() -> None:
    os._exit(1)


def runs_into_the_timeout() -> None:
    while True:
        with contextlib.suppress(Interrupted):
            current().clock.sleep(60)


ENDS = pytest.mark.parametrize("end", [dies, runs_into_the_timeout], ids=["crash", "timeout"])
MODES = pytest.mark.parametrize(
    "settings", [{}, {"ack": "eager"}, {"isolate": False}], ids=["on_return", "eager", "not isolated"]
)
QUEUES = pytest.mark.parametrize("queue", ["orders", "orders.fifo"])


class Life:
    """A queue with a consumer. Its messages have names, and ``work`` says what a run of one does."""

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

        self.letters = "letters.fifo" if queue.endswith(".fifo") else "letters"
        sandbox.queue(queue, dead_letter=self.letters, visibility_timeout=VISIBILITY)
        sandbox.connect(handler, queue, batch_size=10, window=window, timeout=30)

    def send(self, *names: str) -> None:
        """On FIFO each in a group of its own."""
        for name in names:
            fifo: Any = {"group_id": name, "deduplication_id": name} if self.queue.endswith(".fifo") else {}
            self.sandbox.send(self.queue, name, **fifo)

    def of(self, *names: str) -> "Life":
        self.send(*names)
        self.report: Report = self.sandbox.run()
        return self

    @property
    def dead(self) -> list[str]:
        return [letter.body for letter in self.sandbox.messages(self.letters)]


def once(name: str, end: Callable[[], None], seconds: float = 0) -> Callable[[Message], None]:
    """Each run takes so many seconds; the first of this message ends so."""
    ended: list[str] = []

    def work(message: Message) -> None:
        current().clock.sleep(seconds)
        if message.body == name and not ended:
            ended.append(name)
            end()

    return work


# the process dies


@ENDS
@MODES
@QUEUES
def test_a_process_that_dies_brings_its_whole_batch_back(
    end: Callable[[], None], settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # PLATFORM 11
    """All of it a delivery older, when its visibility ends; also what was done a moment before."""
    life = Life(sandbox, once("b", end), queue, **settings).of("a", "b", "c")
    assert life.deliveries["b"] == [1, 2]
    assert life.deliveries["c"] == [2]
    assert life.report.count("COMMITTED") == 3
    assert sandbox.elapsed >= VISIBILITY


@ENDS
@QUEUES
def test_by_default_what_was_done_in_a_process_that_dies_is_done_again(
    end: Callable[[], None], queue: str, sandbox: Sandbox
) -> None:  # SPEC G3
    life = Life(sandbox, once("d", end, seconds=2), queue).of("a", "b", "c", "d")
    assert life.runs == {"a": 2, "b": 2, "c": 2, "d": 2}


@ENDS
@QUEUES
def test_with_eager_acks_what_was_done_a_second_before_stays_done(
    end: Callable[[], None], queue: str, sandbox: Sandbox
) -> None:  # SPEC G3
    """With ten in a request, so does all up to the last ten."""
    life = Life(sandbox, once("d", end, seconds=2), queue, ack="eager").of("a", "b", "c", "d")
    assert life.runs == {"a": 1, "b": 1, "c": 1, "d": 2}


@ENDS
def test_fresh_messages_are_done_for_good_before_one_that_kills_its_process_again(
    end: Callable[[], None], sandbox: Sandbox
) -> None:  # SPEC G4
    def work(message: Message) -> None:
        if message.body == "poison" and message.receive_count < 3:
            end()

    life = Life(sandbox, work, window=60)
    life.send("poison")
    sandbox.advance(60 + VISIBILITY - 10)
    life.of("a", "b")
    batches = [event.fields["delivery_ids"] for event in life.report.events if event.what == "invoked"]
    assert [len(batch) for batch in batches] == [1, 3, 1]
    assert life.runs == {"poison": 3, "a": 1, "b": 1}


@ENDS
def test_without_isolation_they_may_die_with_it_each_time(end: Callable[[], None], sandbox: Sandbox) -> None:  # SPEC G4
    life = Life(sandbox, lambda message: end() if message.body == "poison" else None, isolate=False)
    assert life.of("poison", "a", "b").dead == ["poison", "a", "b"]
    assert life.runs == {"poison": 15}


@QUEUES
@MODES
def test_a_process_that_dies_while_it_settles_loses_no_delay_and_no_letter(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC A2, F4
    """What was said to SQS holds; what was done runs again, since the function gave no answer."""

    def work(message: Message) -> None:
        if message.body == "late" and message.receive_count == 1:
            message.retry(delay=600)

    life = Life(sandbox, work, queue, **settings)
    sandbox.faults.add("crash_after", operation="ChangeMessageVisibilityBatch")
    life.of("a", "late")
    assert life.report.count("COMMITTED") == 2
    assert life.runs["late"] == 2
    assert 600 <= sandbox.elapsed < 610


# Lambda or SQS throttles


@MODES
@QUEUES
def test_a_throttled_batch_comes_back_unrun_a_delivery_older(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # PLATFORM 15
    """Lambda tries for as long as its messages are hidden."""
    life = Life(sandbox, lambda _: None, queue, **settings)
    sandbox.faults.add("throttled", times=None)
    life.send("a", "b")
    sandbox.advance(VISIBILITY)
    sandbox.faults.clear()
    life.of()
    assert life.deliveries == {"a": [2], "b": [2]}
    assert life.dead == []


@pytest.mark.parametrize("fault", ["throttle", "lost_answer", "hang"])
@QUEUES
def test_an_eager_delete_that_fails_or_is_not_answered_is_left_to_lambda(
    fault: str, queue: str, sandbox: Sandbox
) -> None:  # SPEC G3
    sandbox.faults.add(fault, operation="DeleteMessageBatch", times=None)
    life = Life(sandbox, lambda _: None, queue, ack="eager").of(*"abcdefghij")
    assert life.runs == dict.fromkeys("abcdefghij", 1)
    assert life.report.count("COMMITTED") == 10


@MODES
@QUEUES
def test_a_delay_that_is_throttled_is_the_queues_visibility_timeout(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC G1
    sandbox.faults.add("throttle", operation="ChangeMessageVisibilityBatch", times=None)
    life = Life(sandbox, lambda message: message.retry() if message.receive_count == 1 else None, queue, **settings)
    life.of("a")
    assert life.runs == {"a": 2}
    assert VISIBILITY <= sandbox.elapsed < VISIBILITY + 5


@MODES
@QUEUES
def test_a_delay_whose_answer_is_lost_holds(settings: dict[str, Any], queue: str, sandbox: Sandbox) -> None:  # SPEC G1
    sandbox.faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=None)
    life = Life(sandbox, lambda message: message.retry() if message.receive_count == 1 else None, queue, **settings)
    life.of("a")
    assert life.runs == {"a": 2}
    assert 30 <= sandbox.elapsed < 45


@MODES
@QUEUES
def test_a_dead_letter_that_is_throttled_stays_and_is_tried_again(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC F4
    sandbox.faults.add("throttle", operation="SendMessageBatch", times=2)
    life = Life(sandbox, lambda message: message.reject("no"), queue, **settings).of("a")
    assert life.dead == ["a"]
    assert life.runs == {"a": 2}


@pytest.mark.parametrize(("queue", "letters"), [("orders", 2), ("orders.fifo", 1)])
@MODES
def test_a_dead_letter_whose_answer_is_lost_is_there_twice_or_on_fifo_once(
    settings: dict[str, Any], queue: str, letters: int, sandbox: Sandbox
) -> None:  # SPEC E6, E7, J6
    """The client sends it again: on FIFO SQS swallows the second; on a standard queue both have the same stable id."""
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    life = Life(sandbox, lambda message: message.reject("no"), queue, **settings).of("a")
    assert life.dead == ["a"] * letters
    assert len({letter.id for letter in sandbox.messages(life.letters)}) == 1
    assert life.runs == {"a": 1}
