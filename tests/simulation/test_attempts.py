"""Exact attempts in virtual time, with an attempt store that fails, is slow, throttles, and loses answers."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest

from tarry import (
    AttemptChange,
    DropMessage,
    Failure,
    Fixed,
    MemoryAttempts,
    Message,
    Outcome,
    RetryInPlace,
    consumer,
)
from tarry.testing import Report, Sandbox
from tarry.world import current
from tests.loglines import Caplog, lines
from tests.sandboxes import work
from tests.settled import fails
from tests.simulation.attempts import judge
from tests.simulation.failing_tables import MOODS, FailingStore
from tests.tables import SlowTable

TEN: dict[str, Any] = {"visibility_timeout": 60, "batch_size": 10, "timeout": 10}
SEEDS = (*range(11), 16, 18)


@pytest.fixture
def _without_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print no log lines of tarry: the sandbox reads them."""
    monkeypatch.setattr(logging.getLogger("tarry"), "propagate", False)


@pytest.mark.usefixtures("_without_log")
@pytest.mark.filterwarnings("ignore")
def test_no_seed_miscounts_an_attempt_or_breaks_a_rule_whatever_the_store_does() -> None:  # SPEC O2, O4
    """A thousand seeds: ``python -m tests.simulation.attempts``."""
    assert {FailingStore(seed).mood for seed in SEEDS} == {*MOODS}
    bad = [result.text for seed in SEEDS if (result := judge(seed)).text]
    assert not bad, "\n".join(bad)


@pytest.mark.usefixtures("_without_log")
def test_a_store_that_counts_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAttempts, "write", lambda self, changes: None)
    well = [seed for seed in range(40) if FailingStore(seed).mood == "well"]
    assert any(judge(seed).text for seed in well[:8])


class SlowStore(MemoryAttempts):
    """A store that takes its time."""

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        super().__init__()
        self._sleep, self._seconds = sandbox.sleep, seconds

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        self._sleep(self._seconds)
        return super().read(ids)

    def write(self, changes: Sequence[AttemptChange]) -> None:
        self._sleep(self._seconds)
        super().write(changes)


def longest_invocation(report: Report) -> float:
    invoked = {event.fields["request_id"]: event.at for event in report.events if event.what == "invoked"}
    took = [event.at - invoked[event.fields["request_id"]] for event in report.events if event.what == "answered"]
    assert len(took) >= 4
    return max(took)


@pytest.mark.parametrize("seconds", [0.3, 0.7, 20])
def test_no_invocation_waits_longer_than_a_second_for_the_store(
    seconds: float, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC O4
    handler = consumer(max_attempts=4, backoff=Fixed(60), attempts=SlowStore(sandbox, seconds))(fails)
    work(sandbox, handler, *map(str, range(60)), max_receive_count=13, timeout=30)
    assert longest_invocation(sandbox.run()) < 1.5  # the requests to SQS take time as well
    assert {each.failure.attempts for each in sandbox.messages("orders-dlq") if each.failure} == {4}
    assert bool(lines(caplog, "attempts_not_exact")) == (seconds > 0.5)


@pytest.mark.parametrize("seconds", [0.3, 20])
def test_no_fifo_invocation_waits_longer_than_a_second_for_the_store_after_a_crash(
    seconds: float, sandbox: Sandbox
) -> None:  # SPEC O4
    """Each message is written before it runs."""

    @consumer(max_attempts=4, backoff=Fixed(60), attempts=SlowStore(sandbox, seconds))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            os._exit(1)
        if message.body == "9":
            raise ValueError("no")

    work(sandbox, handler, *map(str, range(10)), queue="ledger.fifo", max_receive_count=45, timeout=30)
    assert longest_invocation(sandbox.run()) < 1.8
    assert [each.body for each in sandbox.messages("ledger-dlq.fifo")] == ["9"]


@pytest.mark.parametrize("counts", [True, False])
def test_a_message_that_crashes_takes_no_attempt_from_its_neighbours(counts: bool, sandbox: Sandbox) -> None:
    ran: list[int] = []

    @consumer(max_attempts=2, backoff=Fixed(60), attempts=MemoryAttempts() if counts else None)
    def handler(message: Message) -> None:
        if message.body == "poison":
            os._exit(1)
        ran.append(message.attempt)
        raise ValueError("no")

    work(sandbox, handler, "poison", "neighbour", max_receive_count=9, **TEN)
    sandbox.run()
    [failure] = [each.failure for each in sandbox.messages("orders-dlq") if each.body == "neighbour" and each.failure]
    assert ran == ([1, 2] if counts else [ran[0]])
    assert (failure.crashes or 0) > 0 if counts else failure.attempts_at_most


def test_ten_messages_behind_a_failing_head_have_all_their_own_attempts(sandbox: Sandbox) -> None:
    """SQS counts a receive of each message for each retry of the first one."""
    ran: dict[str, list[int]] = {}

    @consumer(max_attempts=3, backoff=Fixed(30), attempts=MemoryAttempts())
    def handler(message: Message) -> None:
        ran.setdefault(message.body, []).append(message.attempt)
        raise ValueError("no")

    work(sandbox, handler, *map(str, range(10)), queue="ledger.fifo", max_receive_count=10 * 3 + 5, **TEN)
    sandbox.run()
    assert ran == {str(index): [1, 2, 3] for index in range(10)}
    histories = [each.failure.history for each in sandbox.messages("ledger-dlq.fifo") if each.failure]
    assert [len(history) for history in histories] == [3] * 10


class Ledger:
    """A FIFO queue like that of functions/ledger. A body says what becomes of each run of its message.

    ``x``: it kills the process; ``f``: it fails; ``*`` repeats the last letter. After the last letter, it succeeds.
    """

    def __init__(
        self, *bodies: str, max_receive_count: int = 405, groups: int = 1, is_async: bool = False, **settings: Any
    ) -> None:
        self.done: list[str] = []
        self.attempts: dict[str, list[int]] = {}
        """The attempts of each message's runs."""

        def handle(message: Message) -> None:
            runs = self.attempts.setdefault(message.body, [])
            runs.append(message.attempt)
            script = message.body.partition(" ")[0]
            match script[0] if script.endswith("*") else script[len(runs) - 1 : len(runs)]:
                case "x":
                    os._exit(1)
                case "f":
                    raise ValueError("no")
            self.done.append(message.body)

        async def handle_async(message: Message) -> None:
            handle(message)

        settings = {"max_attempts": 40, "backoff": Fixed(30), "attempts": MemoryAttempts(), **settings}
        handler = consumer(**settings)(handle_async if is_async else handle)
        with Sandbox() as sandbox:
            by_body = "".join(str(index % groups) for index in range(len(bodies)))
            settings = {"max_receive_count": max_receive_count, **TEN}
            work(sandbox, handler, *bodies, queue="ledger.fifo", groups=by_body, **settings)
            sandbox.run()
            self.dead = [(each.body, each.failure) for each in sandbox.messages("ledger-dlq.fifo")]
            self.seconds = sandbox.elapsed


@pytest.mark.parametrize(("is_async", "concurrency"), [(False, 1), (False, 2), (True, 2)])
def test_the_messages_behind_one_that_crashes_succeed_and_it_is_dead_lettered_with_its_record(
    is_async: bool, concurrency: int
) -> None:  # SPEC C9, O2
    """SQS counts the same receives for all of them, and would move all ten without a record, after hours."""
    neighbours = [f"- {number}" for number in range(11)]
    run = Ledger("x*", *neighbours, is_async=is_async, concurrency=concurrency)
    [(body, failure)] = run.dead
    assert body == "x*"
    assert failure is not None
    assert (failure.reason, failure.attempts, failure.crashes) == ("exhausted", 40, 1)
    assert failure.type == "tarry.ProcessCrashed"
    assert [entry["attempt"] for entry in failure.history] == [1, *range(32, 41)]
    assert run.done == neighbours
    assert run.seconds < 10 * 60


def test_nine_messages_that_crash_do_not_take_the_tenth_with_them() -> None:
    """Each uses up its attempts; ``maxReceiveCount`` is ``BatchSize * max_attempts + 5``."""
    run = Ledger(*(f"x* {number}" for number in range(9)), "-", max_attempts=8, max_receive_count=85)
    assert [failure and failure.attempts for _, failure in run.dead] == [8] * 9
    assert run.done == ["-"]


def test_a_run_that_crashes_is_an_attempt_if_the_delivery_before_left_no_trace_either() -> None:
    """Only then its start is written: otherwise each retry would cost a write."""
    run = Ledger("xxfxx", "-")
    assert run.attempts == {"xxfxx": [1, 1, 2, 3, 3, 4], "-": [1]}
    run = Ledger("xxf", "-", max_attempts=2)
    [(_, failure)] = run.dead
    assert failure is not None
    errors = [(entry["attempt"], entry["error"].partition(":")[0]) for entry in failure.history]
    assert errors == [(1, "tarry.ProcessCrashed"), (2, "ValueError")]


def test_a_message_that_ended_before_another_one_crashed_is_not_taken_for_it() -> None:
    """It comes back if it is not deleted before the process dies."""
    run = Ledger("- 0", "f", "x*", "- 3", max_attempts=5)
    assert [(body, failure and failure.attempts) for body, failure in run.dead] == [("x*", 5)]
    assert {*run.attempts["- 0"]} == {1}
    assert run.done[-1] == "- 3"


@pytest.mark.parametrize("is_async", [False, True])
def test_no_message_of_another_group_is_taken_for_the_one_that_crashes(is_async: bool) -> None:
    """With ``concurrency``, groups run at the same time, but not after a crash."""
    bodies = ["x* 0", *(f"- {number}" for number in range(1, 8))]
    run = Ledger(*bodies, groups=4, max_attempts=1, concurrency=4, is_async=is_async)
    assert [body for body, _ in run.dead] == ["x* 0"]
    assert {*run.done} == {*bodies[1:]}
    assert {*chain.from_iterable(run.attempts.values())} == {1}


class Refuses(MemoryAttempts):
    """A store that refuses changes of one kind: ends of messages, messages without a run, or runs that failed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def write(self, changes: Sequence[AttemptChange]) -> None:
        if any(change.kind == self._kind for change in changes):
            raise RuntimeError("throttled")
        super().write(changes)


def test_a_message_that_is_done_is_not_taken_for_one_that_crashed_if_the_store_does_not_take_its_end() -> None:
    first, *others = bodies = [f"- {number}" for number in range(4)]
    run = Ledger(first, "x*", *others, max_attempts=1, attempts=Refuses("end"))
    assert [body for body, _ in run.dead] == ["x*"]
    assert {*run.done} == {*bodies}


def test_a_message_that_crashes_is_dead_lettered_with_its_record_at_its_last_delivery() -> None:
    """``maxReceiveCount`` is below the number of attempts."""
    run = Ledger("x*", "-", max_receive_count=4)
    [(_, failure)] = run.dead
    assert failure is not None
    assert (failure.reason, failure.attempts) == ("exhausted", 2)
    assert run.done == ["-"]


def raises(failure: Failure, next_step: Any) -> Outcome:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("steps", "done"),
    [
        ([RetryInPlace(), DropMessage()], ["-"]),
        ([RetryInPlace()], ["xxxx", "-"]),
        ([raises, RetryInPlace()], ["xxxx", "-"]),
    ],
    ids=["drops", "keeps", "raises"],
)
def test_the_failure_steps_decide_on_a_message_that_crashes(steps: list[Any], done: list[str]) -> None:
    """One that no step takes runs again after its wait: its code may have been corrected."""
    run = Ledger("xxxx", "-", max_attempts=2, on_failure=steps)
    assert (run.done, run.dead) == (done, [])
    assert run.attempts["xxxx"][:3] == [1, 1, 2]
    assert (len(run.attempts["xxxx"]) == 3) == (done == ["-"])


def test_without_a_store_sqs_moves_the_messages_behind_one_that_crashes_with_it() -> None:
    """The guide says so."""
    run = Ledger("x*", *(f"- {number}" for number in range(11)), max_receive_count=25, attempts=None)
    assert [failure for _, failure in run.dead] == [None] * 10


@pytest.mark.parametrize(("is_async", "concurrency"), [(False, 1), (False, 2), (True, 2)])
def test_a_message_that_is_not_claimed_in_time_is_not_taken_for_one_that_crashed(
    is_async: bool, concurrency: int, sandbox: Sandbox
) -> None:  # SPEC C9, K4
    """It is released, and the store does not take that either."""
    table, store, runs = SlowTable(), Refuses("seen"), Counter[str]()

    def handle(message: Message) -> float:
        runs[message.body] += 1
        if runs["crashes once"] == 1:
            os._exit(1)
        table.seconds = 1.2 if message.body == "crashes once" else 0
        return 3.5 if message.body == "crashes once" else 0

    def handle_sync(message: Message) -> None:
        sandbox.sleep(handle(message))

    async def handle_async(message: Message) -> None:
        await current().clock.asleep(handle(message))

    settings: dict[str, Any] = {"max_attempts": 1, "concurrency": concurrency, "attempts": store}
    handler = consumer(**settings, idempotency=table)(handle_async if is_async else handle_sync)
    work(sandbox, handler, "crashes once", "waits", queue="orders.fifo", max_receive_count=50, **TEN)
    report = sandbox.run()
    assert not sandbox.messages("orders-dlq.fifo")
    assert runs == {"crashes once": 2, "waits": 1}
    assert sum(event.what == "invoked" for event in report.events) == 3


def test_a_crash_stays_in_the_history_of_a_message_that_is_then_not_claimed(sandbox: Sandbox) -> None:  # SPEC O2
    """Its idempotency record still counts, so it is deferred, and its start is not written."""
    table, runs = SlowTable(), list[int]()

    @consumer(attempts=MemoryAttempts(), idempotency=table, max_attempts=2, backoff=Fixed(1))
    def handle(message: Message) -> None:
        runs.append(message.attempt)
        if len(runs) < 3:
            if len(runs) == 2:
                for item in table.items.values():
                    item.in_progress_expiry_timestamp = int((current().clock.time() + 100) * 1000)
            os._exit(1)
        raise ValueError("no")

    work(sandbox, handle, "-", queue="orders.fifo", max_receive_count=50, **TEN)
    sandbox.run()
    [dead] = sandbox.messages("orders-dlq.fifo")
    assert dead.failure is not None
    errors = [(entry["attempt"], entry["error"].partition(":")[0]) for entry in dead.failure.history]
    assert errors == [(1, "tarry.ProcessCrashed"), (2, "ValueError")]
    assert runs == [1, 1, 2]


def test_a_last_attempt_that_the_store_does_not_take_does_not_run_again(sandbox: Sandbox) -> None:  # SPEC C9, O2
    """Its start was written, so it counts as one that crashed. The rules of the sandbox allow it."""
    runs = Counter[str]()

    @consumer(attempts=Refuses("run"), max_attempts=1)
    def handle(message: Message) -> None:
        runs[message.body] += 1
        if runs["crashes once"] == 1:
            os._exit(1)
        if message.body == "fails":
            raise ValueError("no")

    work(sandbox, handle, "crashes once", "fails", queue="orders.fifo", max_receive_count=50, **TEN)
    sandbox.faults.add("unreachable", "SendMessageBatch", times=2)
    sandbox.run()
    [dead] = sandbox.messages("orders-dlq.fifo")
    assert dead.failure is not None
    assert (dead.body, dead.failure.attempts) == ("fails", 1)
    assert runs == {"crashes once": 2, "fails": 1}
