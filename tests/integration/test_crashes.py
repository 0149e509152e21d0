"""Crashes, timeouts, throttles, and lost answers in each ack mode: the table of docs/guides/crashes.md.

In virtual time, in a sandbox. `tests/acceptance/test_crashes.py` tests crashes with real processes.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tarry import Fixed, Message
from tarry.testing import Report, Sandbox
from tarry.world import Interrupted, current
from tests.handlers import timed

VISIBILITY = 180
RECEIVES = 15
A_FEW = 3


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
    """A queue with a consumer whose handler calls ``work``, and the deliveries in which each message ran, by body."""

    report: Report

    def __init__(
        self,
        sandbox: Sandbox,
        work: Callable[[Message], None],
        queue: str = "orders",
        window: int = 0,
        is_async: bool = False,
        **settings: Any,
    ) -> None:
        self.sandbox, self.queue = sandbox, queue
        self.deliveries: dict[str, list[int]] = {}
        self.bodies: dict[str, str] = {}

        def handle(message: Message) -> None:
            self.deliveries.setdefault(message.body, []).append(message.receive_count)
            work(message)

        way, seconds = ("async", 0.01) if is_async else ("sync", 0)
        handler = timed(way, lambda _: seconds, handle, **{"backoff": Fixed(30), **settings})
        self.dead_letter_queue = queue.replace("orders", "orders-dlq")
        sandbox.queue(
            queue, dead_letter=self.dead_letter_queue, max_receive_count=RECEIVES, visibility_timeout=VISIBILITY
        )
        sandbox.connect(handler, queue, batch_size=10, window=window, timeout=30)

    def send(self, bodies: Iterable[str], groups: int = 10) -> None:
        """Send messages; on FIFO to the groups in turn."""
        for number, body in enumerate(bodies):
            group = f"g{number % groups}" if self.queue == "orders.fifo" else None
            self.bodies[self.sandbox.send(self.queue, body, group_id=group)] = body

    def of(self, bodies: Iterable[str], groups: int = 10) -> "ConsumerRun":
        """Send messages, and run until the queue is empty."""
        self.send(bodies, groups)
        self.report = self.sandbox.run()
        return self

    @property
    def runs(self) -> dict[str, int]:
        return {body: len(counts) for body, counts in self.deliveries.items()}

    @property
    def dead(self) -> list[str]:
        return [dead_letter.body for dead_letter in self.sandbox.messages(self.dead_letter_queue)]

    def crashes(self) -> list[list[str]]:
        """The unfinished messages of the batch at each crash."""
        batches, deleted, crashed = {}, set(), []
        for event in self.report.events:
            match event.what:
                case "invoked":
                    batches[event.fields["request_id"]] = event.fields["delivery_ids"]
                case "deleted":
                    deleted.add(event.fields["delivery_id"])
                case "answered" if event.fields["kind"] in ("crash", "timeout"):
                    batch = batches[event.fields["request_id"]]
                    crashed.append([self.bodies[each] for each in batch if each not in deleted])
        return crashed

    def crashes_by_body(self) -> Counter[str]:
        """The number of crashes that each other message was part of."""
        return Counter(body for batch in self.crashes() for body in batch if body != "poison")


# crashes


@ENDS
@MODES
@QUEUES
def test_after_a_crash_the_batch_is_redelivered_without_messages_that_were_acknowledged_eagerly(
    end: Callable[[], None], settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC G3, PLATFORM 11
    """The batch comes back when its visibility timeout ends. Up to ten messages wait a second for their eager ack."""

    def work(message: Message) -> None:
        current().clock.sleep(2)
        if message.body == "c" and message.receive_count == 1:
            end()

    run = ConsumerRun(sandbox, work, queue, **settings).of("abcd")
    finished = [1] if settings == {"ack": "eager"} else [1, 2]
    assert run.deliveries == {"a": finished, "b": finished, "c": [1, 2], "d": [2]}
    assert run.report.count("COMMITTED") == 4
    assert sandbox.elapsed >= VISIBILITY


@ENDS
@pytest.mark.parametrize("isolate", [True, False])
def test_only_with_isolation_messages_beside_a_crash_stay_done(
    isolate: bool, end: Callable[[], None], sandbox: Sandbox
) -> None:  # SPEC G4
    run = ConsumerRun(sandbox, kills(end), window=60, isolate=isolate)
    run.send(["poison"])
    sandbox.advance(60 + VISIBILITY - 10 if isolate else 0)  # the others come with its second or first delivery
    run.of("ab")
    assert run.dead == (["poison"] if isolate else ["poison", "a", "b"])
    assert (run.runs["poison"], run.runs.get("a", 0)) == (RECEIVES, int(isolate))
    batches = [event.fields["delivery_ids"] for event in run.report.events if event.what == "invoked"]
    assert [len(batch) for batch in batches] == ([1, 3] + [1] * (RECEIVES - 2) if isolate else [3] * RECEIVES)


@QUEUES
@MODES
def test_an_accepted_delay_holds_after_a_crash(settings: dict[str, Any], queue: str, sandbox: Sandbox) -> None:
    """SPEC A2, F4. The finished message runs again, because the function returned no response."""

    def work(message: Message) -> None:
        if message.body == "delayed" and message.receive_count == 1:
            message.retry(delay=600)

    run = ConsumerRun(sandbox, work, queue, **settings)
    sandbox.faults.add("crash_after", operation="ChangeMessageVisibilityBatch")
    run.of(["a", "delayed"])
    assert run.report.count("COMMITTED") == 2
    assert run.runs["delayed"] == 2
    assert 600 <= sandbox.elapsed < 610


# messages that kill their process until they are dead-lettered


def ten(place: int) -> list[str]:
    return [*(f"m{number}" for number in range(place)), "poison", *(f"m{number}" for number in range(place, 9))]


def kills(end: Callable[[], None]) -> Callable[[Message], None]:
    return lambda message: end() if message.body == "poison" else None


@QUEUES
@pytest.mark.parametrize(
    ("end", "place", "settings"),
    [
        pytest.param(exits, 0, {}, id="first"),
        pytest.param(exits, 9, {}, id="last"),
        pytest.param(exits, 4, {"concurrency": 4}, id="threads"),
        pytest.param(exits, 4, {"concurrency": 4, "is_async": True}, id="tasks"),
        pytest.param(exits, 4, {"ack": "eager"}, id="eager"),
        pytest.param(runs_into_the_timeout, 4, {}, id="timeout"),
    ],
)
def test_a_poison_message_is_dead_lettered_alone(
    end: Callable[[], None], place: int, settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC G4
    """On FIFO each message has a group of its own, because a group is redelivered as a whole."""
    run = ConsumerRun(sandbox, kills(end), queue, **settings).of(ten(place))
    assert run.dead == ["poison"]
    assert run.report.count("COMMITTED") == 9
    assert run.runs["poison"] == RECEIVES
    assert max(run.crashes_by_body().values()) <= A_FEW
    assert run.crashes()[2 * A_FEW :] == [["poison"]] * (RECEIVES - 2 * A_FEW)


@pytest.mark.parametrize(
    ("bodies", "groups", "dead"),
    [(["a", "b", "c", "poison", "behind"], 1, ["poison", "behind"]), (ten(1), 4, ["poison", "m4", "m8"])],
)
def test_on_fifo_messages_before_a_poison_message_of_their_group_and_other_groups_succeed_after_a_few_crashes(
    bodies: list[str], groups: int, dead: list[str], sandbox: Sandbox
) -> None:
    """SPEC G4, H1. For messages behind it, each crash counts as a receive, unless `BatchSize` is 1."""
    run = ConsumerRun(sandbox, kills(exits), "orders.fifo").of(bodies, groups)  # the checkers check the order
    assert (run.dead, run.report.count("COMMITTED")) == (dead, len(bodies) - len(dead))
    assert max(count for body, count in run.crashes_by_body().items() if body not in dead) <= 5


# throttles and lost answers


@MODES
@QUEUES
def test_a_batch_that_lambda_throttles_is_redelivered_without_a_run(
    settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # PLATFORM 15
    """Lambda retries until the visibility timeout ends."""
    run = ConsumerRun(sandbox, lambda _: None, queue, **settings)
    sandbox.faults.add("throttled", times=None)
    run.send("ab")
    sandbox.advance(VISIBILITY)
    sandbox.faults.clear()
    run.of("")
    assert (run.deliveries, run.dead) == ({"a": [2], "b": [2]}, [])


@pytest.mark.parametrize("fault", ["throttle", "lost_answer", "hang"])
@QUEUES
def test_a_message_whose_eager_delete_fails_is_left_to_lambda(fault: str, queue: str, sandbox: Sandbox) -> None:
    # SPEC G3
    sandbox.faults.add(fault, operation="DeleteMessageBatch", times=None)
    run = ConsumerRun(sandbox, lambda _: None, queue, ack="eager").of("abcdefghij")
    assert (run.runs, run.report.count("COMMITTED")) == (dict.fromkeys("abcdefghij", 1), 10)


@pytest.mark.parametrize(("fault", "seconds"), [("throttle", VISIBILITY), ("lost_answer", 30)])
@MODES
@QUEUES
def test_a_delay_holds_if_its_answer_is_lost_and_is_the_visibility_timeout_if_it_is_throttled(
    fault: str, seconds: float, settings: dict[str, Any], queue: str, sandbox: Sandbox
) -> None:  # SPEC G1
    sandbox.faults.add(fault, operation="ChangeMessageVisibilityBatch", times=None)
    run = ConsumerRun(
        sandbox, lambda message: message.retry() if message.receive_count == 1 else None, queue, **settings
    ).of("a")
    assert run.runs == {"a": 2}
    assert seconds <= sandbox.elapsed < seconds + 15


@pytest.mark.parametrize(
    ("fault", "times", "queue", "copies", "runs"),
    [
        ("throttle", 2, "orders", 1, 2),
        ("throttle", 2, "orders.fifo", 1, 2),
        ("lost_answer", 1, "orders", 2, 1),
        ("lost_answer", 1, "orders.fifo", 1, 1),
    ],
)
@MODES
def test_a_dead_letter_is_tried_again_after_a_throttle_and_sent_twice_if_its_answer_is_lost(
    fault: str, times: int, queue: str, copies: int, runs: int, settings: dict[str, Any], sandbox: Sandbox
) -> None:  # SPEC E6, E7, F4, J6
    """The client repeats a lost send. On FIFO, SQS deduplicates it; on a standard queue, both have one stable id."""
    sandbox.faults.add(fault, operation="SendMessageBatch", times=times)
    run = ConsumerRun(sandbox, lambda message: message.reject("no"), queue, **settings).of("a")
    assert run.dead == ["a"] * copies
    assert len({dead_letter.id for dead_letter in sandbox.messages(run.dead_letter_queue)}) == 1
    assert run.runs == {"a": runs}
