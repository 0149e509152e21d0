"""Attempts, the delays between them, and a policy that consumers share, as the requests to SQS show them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from tarry import (
    Batch,
    ConfigurationError,
    Consumer,
    DeadLetter,
    DropMessage,
    Exponential,
    Fixed,
    LocalRetry,
    Message,
    RetryInPlace,
    RetryPolicy,
    Schedule,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import RealThreads, current
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, batch_of, event, record
from tests.sandboxes import work
from tests.settled import fails, orders, reasons, settle, targets, tarry_attribute
from tests.wire import Wire, client_error


def attempts_of(*records: dict[str, Any], wire: Wire | None = None, **settings: Any) -> dict[str, int]:
    seen: dict[str, int] = {}
    handler = consumer(**settings)(lambda message: seen.update({message.delivery_id: message.attempt}))
    settle(handler, event(*records), wire)
    return seen


# which attempt it is

COUNTS: dict[Any, int] = {"1": 1, "2": 2, "1000": 1000, " 3 ": 3, 4: 4}
NOT_COUNTS: list[Any] = [
    "0", "-5", "", "many", "1e3", "2.5", "NaN", "x1", "9" * 5_000, float("inf"), float("nan"), None, [], {},
]  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "attempt"),
    [
        *(({"ApproximateReceiveCount": count}, attempt) for count, attempt in COUNTS.items()),
        *(({"ApproximateReceiveCount": count}, 1) for count in NOT_COUNTS),
        *((attributes, 1) for attributes in (None, [], "none", {})),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_the_attempt_is_the_receive_count_or_1_if_it_is_unreadable(attributes: Any, attempt: int) -> None:
    """SPEC A7, C2. The batch contains the message twice, which compares the counts."""
    seen: list[tuple[int, int]] = []
    delivered = {**record(), "attributes": attributes}
    handler = consumer(lambda message: seen.append((message.attempt, message.receive_count)))
    settle(handler, event(delivered, delivered))
    assert seen == [(attempt, attempt)]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_on_fifo_a_message_behind_another_of_its_group_is_at_its_first_attempt(concurrency: int) -> None:
    """SPEC C2, H3. On a standard queue, a group id does not change the attempt."""
    fifo = [
        record("{}", "head", "orders.fifo", receives=3, group="a"),
        record("{}", "tail", "orders.fifo", receives=4, group="a"),
        record("{}", "copy", "orders.fifo", receives=9, group="a", attributes=tarry_attribute(carried=2)),
        record("{}", "other", "orders.fifo", receives=5, group="b"),
    ]
    standard = [record("{}", name, receives=4, group="a") for name in ("m1", "m2")]
    assert attempts_of(*fifo, concurrency=concurrency) == {"head": 3, "tail": 1, "copy": 3, "other": 5}
    assert attempts_of(*standard, concurrency=concurrency) == {"m1": 4, "m2": 4}


DROPS = {"on_failure": {"orders": [DropMessage()]}}


@pytest.mark.parametrize(
    ("settings", "queue", "receives", "expected"),
    [
        pytest.param({"max_attempts": 3}, "orders", 2, (3, False), id="before the last"),
        pytest.param({"max_attempts": 3}, "orders", 3, (3, True), id="the last"),
        pytest.param({"max_attempts": 3}, "orders", 9, (3, True), id="after the last"),
        pytest.param({}, "orders", 5, (5, True), id="five by default"),
        pytest.param(DROPS, "orders", 5, (None, None), id="nothing is retried in place"),
        pytest.param({**DROPS, "max_attempts": 5}, "orders", 5, (5, True), id="set nevertheless"),
        pytest.param(DROPS, "refunds", 5, (5, True), id="a queue with the default steps"),
    ],
)
def test_a_message_knows_its_max_attempts_and_whether_this_is_the_last(
    settings: Any, queue: str, receives: int, expected: tuple[Any, Any]
) -> None:  # SPEC C2, E2
    seen: list[tuple[Any, Any]] = []
    handler = consumer(**settings)(lambda each: seen.append((each.max_attempts, each.is_last_attempt)))
    settle(handler, event(record(queue=queue, receives=receives)))
    assert seen == [expected]


@pytest.mark.parametrize(
    ("max_attempts", "max_receive_count", "carried", "receives", "is_exhausted"),
    [
        *((1, 1_000, 0, 1, True), (2, 1_000, 0, 1, False), (2, 1_000, 0, 2, True), (4, 1_000, 0, 3, False)),
        *((4, 1_000, 0, 4, True), (4, 1_000, 0, 40, True), (1_000, 1_000, 0, 999, False)),
        *((100, 3, 0, 2, False), (100, 3, 0, 3, True), (100, 3, 0, 7, True), (100, 1, 0, 1, True)),
        *((100, 15, 0, 4, False), (100, 3, 50, 1, False)),
    ],
)
def test_a_message_is_exhausted_at_its_last_attempt_and_at_the_last_delivery_of_its_queue(
    max_attempts: int, max_receive_count: int, carried: int, receives: int, is_exhausted: bool
) -> None:  # SPEC C1, C8
    batch = event(record("{}", receives=receives, attributes=tarry_attribute(carried=carried)))
    wire = orders(max_receive_count=max_receive_count)
    reported, _ = settle(consumer(max_attempts=max_attempts)(fails), batch, wire)
    failures = [(envelope["failure"]["reason"], envelope["failure"]["attempts"]) for envelope in wire.envelopes()]
    assert (reported, failures) == (([], [("exhausted", receives)]) if is_exhausted else (["m1"], []))


def test_a_message_is_not_dead_lettered_before_its_handler_has_run() -> None:  # SPEC A5, C9
    """However often it was received; the second time, an exit of the message before it releases it."""
    runs: list[str] = []
    batch = event(record("{}", "m1"), record("{}", "m2", receives=500))

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.id)
        if len(runs) == 3:
            raise SystemExit

    reported, wire = settle(handler, batch)
    assert (sorted(runs), reported, wire.sent_entries()) == (["m1", "m2"], [], [])
    reported, wire = settle(handler, batch)
    assert (reported, wire.visibilities()["handle-m2"], wire.sent_entries()) == (["m1", "m2"], 0, [])


# the delay before a retry


def test_by_default_a_message_has_five_attempts_and_growing_delays_and_on_fifo_30_seconds() -> None:  # SPEC C7, C1
    for receives, (least, most) in enumerate([(15, 30), (45, 90), (135, 270), (405, 810)], start=1):
        _, wire = settle(consumer(fails), event(record(receives=receives)))
        assert least <= wire.visibilities()["handle-m1"] <= most
        _, wire = settle(consumer(fails), event(record(queue="orders.fifo", receives=receives)))
        assert wire.visibilities() == {"handle-m1": 30}
    reported, wire = settle(consumer(fails), event(record(receives=5)))
    assert (reported, reasons(wire), wire.visibilities()) == ([], ["exhausted"], {})
    _, wire = settle(consumer(backoff=Fixed(7))(fails), event(record(queue="orders.fifo")))
    assert wire.visibilities() == {"handle-m1": 7}


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Fixed(0), [0, 0, 0, 0]),
        (Fixed(0.2), [1, 1, 1, 1]),
        (Exponential(2, 3, maximum=50), [2, 6, 18, 50]),
        (Schedule([1, 10, 100]), [1, 10, 100, 100]),
    ],
    ids=repr,
)
def test_the_delay_depends_on_the_attempt_that_just_failed(backoff: Any, delays: list[int]) -> None:  # SPEC C3, C2
    records = [record("{}", f"m{receives}", receives=receives) for receives in (1, 2, 3, 4)]
    copy = record("{}", "m5", attributes=tarry_attribute(carried=2))
    _, wire = settle(consumer(max_attempts=10, backoff=backoff)(fails), event(*records, copy))
    assert [wire.visibilities()[f"handle-m{number}"] for number in range(1, 6)] == [*delays, delays[2]]


# the limits of SQS


@pytest.mark.parametrize(
    ("receives", "age", "handling", "cut"), [(1, 0, 0, 43_199), (1, 200, 60, 42_939), (2, 5_000, 60, 42_809)]
)
def test_a_delay_of_the_policy_is_cut_to_the_limit_of_sqs_and_logged(
    receives: int, age: float, handling: float, cut: int, caplog: Caplog
) -> None:  # SPEC C6
    """Of a redelivered message the first receive is unknown: it counts as 330 seconds ago. A handler takes its time."""
    wire = orders(age, visibility_timeout=1_000)
    handler = consumer(backoff=Fixed(43_200))(lambda message: wire.clock.sleep(handling) or fails(message))
    settle(handler, event(record(receives=receives)), wire, remaining=900)
    assert wire.visibilities() == {"handle-m1": cut}
    [line] = lines(caplog, "waiting_retry")
    assert (field(line, "delay"), field(line, "asked_for")) == (cut, 43_200)


def test_an_unknown_first_receive_counts_as_330_seconds_ago() -> None:  # SPEC C6
    times: list[Any] = [None, "", "soon", "-1", "1"]
    unknown = [record(message_id=f"m{n}", system={"ApproximateFirstReceiveTimestamp": t}) for n, t in enumerate(times)]
    _, wire = settle(consumer(backoff=Fixed(43_200))(fails), event(*unknown))
    assert wire.visibilities() == {f"handle-m{number}": 42_869 for number in range(5)}


TOO_LONG = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"


def refuses_beyond(limit: int, **source: Any) -> Wire:
    wire = orders(**source)
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda _, entry: (
        ("InvalidParameterValue", TOO_LONG) if entry["VisibilityTimeout"] > limit else None
    )
    return wire


def test_a_visibility_timeout_refused_as_too_long_is_requested_once_more_with_a_shorter_one() -> None:
    """SPEC A8, C6, G1."""
    batch = event(record("{}", "m1"), record("{}", "m2", receives=2))
    wire = refuses_beyond(42_900, visibility_timeout=600)
    settle(consumer(backoff=Schedule([43_000, 60]))(fails), batch, wire)
    first, second = wire.sent("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in first.entries] == [43_000, 60]
    assert [(entry["ReceiptHandle"], entry["VisibilityTimeout"]) for entry in second.entries] == [("handle-m1", 42_600)]
    reported, wire = settle(consumer(backoff=Fixed(43_000))(fails), wire=refuses_beyond(10))  # refused twice
    assert (reported, len(wire.sent("ChangeMessageVisibilityBatch"))) == (["m1"], 2)
    wire = refuses_beyond(43_170)
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied", status=403)  # the visibility timeout is unknown
    settle(consumer(backoff=Fixed(43_199))(fails), wire=wire)
    assert wire.visibilities()["handle-m1"] <= 43_170


# a delay counts from the failure, even while the other messages of the batch still run (SPEC C11)

LONG = 200
"""The seconds that the second message of the batch takes."""
IN_SLICES: dict[str, Any] = {"visibility_timeout": 1_800, "timeout": 300}


def fail(message: Message, _: Sandbox) -> None:
    raise ValueError(message.body)


def retry_at_a_time(message: Message, sandbox: Sandbox) -> None:
    message.retry(datetime.fromtimestamp(sandbox.now, UTC) + timedelta(seconds=10))


AGAIN = [SendAgain("again", delay=10), RetryInPlace()]
FAILURES: dict[str, tuple[Callable[[Message, Sandbox], None], list[Any]]] = {
    "a delay": (lambda message, _: message.retry(10), []),
    "a time": (retry_at_a_time, []),
    "a deferral": (lambda message, _: message.defer(10), []),
    "the backoff": (fail, []),
    "a copy with a short delay": (fail, AGAIN),
}
WAYS = ("one at a time", "threads", "tasks", "batch")


@pytest.mark.parametrize(("failure", "steps"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("way", WAYS)
def test_a_message_runs_again_on_time_while_its_batch_still_runs(
    failure: Any, steps: list[Any], way: str, sandbox: Sandbox
) -> None:  # SPEC C11, E3
    at: list[float] = []

    def begin(message: Message) -> float:
        if message.body == "first":
            at.append(sandbox.elapsed)
            if len(at) == 1:
                failure(message, sandbox)
        return LONG if message.body == "long" else 0

    async def handle_async(message: Message) -> None:
        await current().clock.asleep(begin(message))

    def handle(message: Message) -> None:
        sandbox.sleep(begin(message))

    def handle_all(batch: Batch) -> None:
        for message in batch:
            try:
                handle(message)
            except ValueError as error:
                message.fail(error)

    settings: Any = {"backoff": Fixed(10), "on_failure": steps}
    if way == "batch":
        handler: Any = batch_consumer(**settings)(handle_all)
    else:
        settings["concurrency"] = 1 if way == "one at a time" else 2
        handler = consumer(**settings)(handle_async if way == "tasks" else handle)
    work(sandbox, handler, "first", "long", **IN_SLICES)
    sandbox.run()
    assert at[1] - at[0] == pytest.approx(10, abs=2)


@pytest.mark.parametrize(("after", "requests"), [(0, 1), (28.75, 1), (29, 0)])
def test_a_verdict_in_a_batch_handler_is_carried_out_at_once_unless_time_is_short(after: float, requests: int) -> None:
    wire, seen = orders(), list[int]()  # SPEC C11, I2

    @batch_consumer
    def handler(batch: Batch) -> None:
        wire.clock.now += after
        batch[0].retry(60)
        seen.append(len(wire.requests))

    assert settle(handler, batch_of(2), wire)[0] == ["m0"]
    assert (seen, wire.visibilities()) == ([requests], {"handle-m0": 60})


def failing(*ids: str, seconds: float = 0) -> Consumer[Any]:
    """Return a consumer whose handler takes some seconds, and fails on these messages."""

    @consumer(backoff=Fixed(5))
    def handler(message: Message) -> None:
        current().clock.sleep(seconds)
        if message.id in ids:
            raise ValueError

    return handler


@batch_consumer(backoff=Fixed(5))
def failing_batch(batch: Batch) -> None:
    raise ValueError


@batch_consumer(backoff=Fixed(5))
def failing_messages(batch: Batch) -> None:
    batch.retry_all()


NOT_DUE = record("{}", "m0", attributes=tarry_attribute(due=RECEIVED_AT + 5))


@pytest.mark.parametrize(
    ("handler", "batch", "threads"),
    [
        pytest.param(failing("m0"), batch_of(2), 1, id="another message follows"),
        pytest.param(failing("m0"), batch_of(1), 0, id="a single message"),
        pytest.param(failing("m1"), batch_of(2), 0, id="the last message"),
        pytest.param(failing(), event(NOT_DUE, record("{}", "m1")), 1, id="not due yet"),
        pytest.param(failing(), event(NOT_DUE), 0, id="not due yet, alone"),
        pytest.param(failing(seconds=24), batch_of(3), 0, id="released for lack of time"),
        pytest.param(failing_batch, batch_of(3), 0, id="a batch handler that has raised"),
        pytest.param(failing_messages, batch_of(3), 0, id="a batch handler that has returned"),
    ],
)
def test_a_thread_sets_short_delays_only_if_other_messages_of_the_batch_may_run_long(
    handler: Consumer[Any], batch: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(RealThreads, "start_unless", lambda _, *work: started.append(work))
    settle(handler, batch)
    assert len(started) == threads


def visibility_requests(sandbox: Sandbox) -> list[float]:
    """Return when visibility timeouts were requested."""
    requests = [event for event in sandbox.history.events if event.what == "request"]
    return [each.at for each in requests if each.fields["operation"] == "ChangeMessageVisibilityBatch"]


def long_or_failing(sandbox: Sandbox, seconds: float = LONG, **settings: Any) -> Any:
    """Return a consumer that fails on a message at its first attempt, unless it is the long one."""

    @consumer(**settings)
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(seconds)
        elif message.attempt == 1:
            raise LookupError("no customer 7")

    return handler


def test_in_a_cold_process_a_delay_is_set_before_a_redelivered_message_runs_long(sandbox: Sandbox) -> None:  # SPEC C11
    """The fresh message waits for the look-up that was begun for the redelivered one."""
    work(sandbox, long_or_failing(sandbox, backoff=Fixed(10)), "long", visibility_timeout=400, timeout=300, window=20)
    sandbox.faults.add("crash", seconds=20, times=1)
    sandbox.send("orders", "first", delay=410)
    sandbox.run()
    runs = [event for event in sandbox.history.events if event.what == "run_started"]
    assert [[*each.fields["messages"]] for each in runs] == [[*each.fields["messages"]] for each in runs[:2]] * 2
    assert runs[3].at - runs[1].at <= 10 + 20 + 2  # 20: the batching window


def test_an_unconfirmed_visibility_change_is_not_repeated_after_its_delay_has_passed(sandbox: Sandbox) -> None:
    """SPEC C11. SQS may have applied it, so the old receipt handle could change a newer delivery."""
    work(sandbox, long_or_failing(sandbox, backoff=Fixed(10)), "first", "long", **IN_SLICES)
    sandbox.faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=2)  # botocore's own retry too
    sandbox.run()
    asked = visibility_requests(sandbox)
    assert max(asked) - min(asked) < LONG / 2


def test_a_message_whose_lease_ends_before_the_batch_is_settled_before_the_lease_ends(sandbox: Sandbox) -> None:
    """SPEC E6. The visibility timeout is the timeout of the function, and the batch is delivered 20 seconds late."""
    handler = long_or_failing(sandbox, 50, max_attempts=1)
    work(sandbox, handler, "first", "long", timeout=60, visibility_timeout=60)
    sandbox.faults.add("held", seconds=20)
    sandbox.run(for_=65)
    assert [dead_letter.body for dead_letter in sandbox.messages("orders-dlq")] == ["first"]


def test_a_local_retry_without_time_left_goes_to_the_next_failure_step(sandbox: Sandbox) -> None:  # SPEC I5
    """The other message of the batch uses up the time that was left when the step was asked."""
    handler = long_or_failing(sandbox, 25, on_failure=[LocalRetry(2, delay=5), DeadLetter()])
    work(sandbox, handler, "first", "long", timeout=30, visibility_timeout=180)
    sandbox.run(for_=60)
    assert [each.failure and each.failure.type for each in sandbox.messages("orders-dlq")] == ["LookupError"]


def test_a_retry_until_a_moment_waits_until_it_however_late_that_is_requested() -> None:  # SPEC C11, B6
    """A whole number of seconds from the verdict on would be up to a second too long."""
    wire = orders()

    @consumer
    def handler(message: Message) -> None:
        if message.delivery_id == "m0":
            message.retry(datetime.fromtimestamp(wire.clock.time() + 300.4, UTC))
        else:
            wire.clock.sleep(10.5)

    assert settle(handler, batch_of(2), wire)[1].visibilities() == {"handle-m0": 290}


# policy=


PATIENT = RetryPolicy(max_attempts=8, backoff=Fixed(77), fatal=KeyError)
NOT_IN_PLACE = [SendAgain("slow"), DeadLetter()]
SINGLE = {
    "max_attempts": 3, "backoff": Fixed(1), "fatal": KeyError, "retry_on": OSError,
    "retry_when": lambda failure: None, "traverse_causes": True,
}  # fmt: skip


def test_consumers_of_messages_and_batches_share_a_policy_whatever_their_failure_steps() -> None:
    """SPEC B7, C1, D1, E1."""
    first, second = consumer(policy=PATIENT)(fails), batch_consumer(policy=PATIENT)(lambda batch: 1 / 0)
    assert consumer(policy=PATIENT, on_failure=NOT_IN_PLACE)(fails).policy is first.policy is second.policy is PATIENT
    assert settle(first)[1].visibilities() == settle(second)[1].visibilities() == {"handle-m1": 77}

    @consumer(policy=PATIENT)
    def handler(message: Message) -> None:
        raise KeyError("customer")

    reported, wire = settle(handler)
    assert (reported, reasons(wire)) == ([], ["fatal"])
    # settings that are None count as not given
    assert consumer(policy=PATIENT, backoff=None, retry_on=None, retry_when=None)(fails).policy is PATIENT
    assert consumer(policy=None, max_attempts=3)(fails).policy == RetryPolicy(3)


def test_an_invalid_policy_and_one_beside_a_single_setting_are_refused_with_both_names() -> None:  # SPEC C1, C5
    for make in (consumer, batch_consumer, consumer(fails).replace):
        for name, value in SINGLE.items():
            text = rf"^policy and {name} are both given: set {name} in the RetryPolicy, or remove policy$"
            with pytest.raises(ConfigurationError, match=text):
                make(**{"policy": PATIENT, name: value})
    odd: Any
    for odd in (5, {"max_attempts": 3}, RetryPolicy, Fixed(3)):
        with pytest.raises(ConfigurationError, match=r"policy takes a RetryPolicy\(\.\.\.\), got "):
            consumer(policy=odd)


def test_replacing_a_setting_changes_a_shared_policy_only_for_that_consumer_and_a_policy_replaces_all_settings() -> (
    None
):
    # SPEC C1
    before = consumer(policy=PATIENT)(fails)
    assert before.replace(timeout=3).policy is PATIENT
    after = before.replace(max_attempts=2)
    assert after.policy == RetryPolicy(max_attempts=2, backoff=Fixed(77), fatal=KeyError)
    assert (before.policy, PATIENT.max_attempts, after.function) == (PATIENT, 8, fails)
    assert after.replace(timeout=3).policy == after.policy
    once = before.replace(max_attempts=1)
    assert (settle(before)[0], settle(once)[0]) == (["m1"], [])
    handler = consumer(max_attempts=2, fatal=OSError, timeout=3)(fails).replace(policy=PATIENT)
    assert (handler.policy, handler.timeout) == (PATIENT, 3)
    assert handler.replace(policy=RetryPolicy()).policy == handler.replace(policy=None).policy == RetryPolicy()
    assert handler.replace(policy=None, max_attempts=2).policy == RetryPolicy(2)


@pytest.mark.parametrize("settings", [{"max_attempts": 5}, {"policy": RetryPolicy(5)}], ids=["single", "policy"])
def test_replacing_another_setting_keeps_a_max_attempts_that_equals_the_default(settings: Any) -> None:  # SPEC B7
    seen: list[int | None] = []
    handler = consumer(on_failure=NOT_IN_PLACE, **settings)(lambda message: seen.append(message.max_attempts))
    for each in (handler, handler.replace(timeout=3), handler.replace(fatal=KeyError), handler.replace(policy=None)):
        settle(each)
    assert seen == [5, 5, 5, None]


# backoffs written by the user


class ChangeableBackoff:
    """A backoff that is valid at first; the test changes its answer later."""

    def __init__(self, seconds: Any = 40.0) -> None:
        self.seconds = seconds

    def delay(self, attempt: int, rng: Random | None = None) -> Any:
        if isinstance(self.seconds, Exception):
            raise self.seconds
        return self.seconds


def consumer_with_changed_backoff(answer: Any, make: Callable[[Any], list[Any]] | None = None, **settings: Any) -> Any:
    """Return a consumer whose backoff, or that of its failure steps, gives ``answer`` after the consumer was made."""
    backoff = ChangeableBackoff()
    handler = consumer(**({"on_failure": make(backoff)} if make else {"backoff": backoff}), **settings)(fails)
    backoff.seconds = answer
    return handler


def test_a_backoff_of_the_user_sets_the_delay_in_place_that_of_a_copy_and_those_of_local_retries() -> None:
    """SPEC C1, E3, I5."""
    assert settle(consumer(backoff=ChangeableBackoff(41.2))(fails))[1].visibilities() == {"handle-m1": 42}
    _, wire = settle(consumer(on_failure=[SendAgain("slow", delay=ChangeableBackoff(7.1))])(fails))
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [8]
    at: list[float] = []

    class QuadraticBackoff:
        def delay(self, attempt: int, rng: Random | None = None) -> float:
            return attempt**2 / 2

    @consumer(on_failure=[LocalRetry(3, QuadraticBackoff()), RetryInPlace()], backoff=Fixed(60))
    def handler(message: Message) -> None:
        at.append(current().clock.time())
        raise ValueError

    settle(handler)
    assert [moment - at[0] for moment in at] == [0, 0.5, 2.5, 7]


@pytest.mark.parametrize("answer", [-1, float("nan"), "60", OSError("no table")], ids=repr)
def test_a_failing_backoff_is_logged_and_the_default_sets_the_delay(answer: Any, caplog: Caplog) -> None:
    """SPEC C1, A2."""
    batch = event(record("{}", "m1"), record("{}", "m2", "orders.fifo", group="g"))
    reported, wire = settle(consumer_with_changed_backoff(answer), batch)
    assert (reported, wire.visibilities()["handle-m2"]) == (["m1", "m2"], 30)
    assert 15 <= wire.visibilities()["handle-m1"] <= 30
    failures = lines(caplog, "backoff_failed")
    assert {(field(line, "message_id"), line.levelname) for line in failures} == {("m1", "ERROR"), ("m2", "ERROR")}
    assert field(failures[0], "text").startswith("The consumer's backoff failed: delay(1) r")
    assert field(failures[0], "text").endswith(". The default backoff sets this delay.")


@pytest.mark.parametrize(("answer", "seconds"), [(-1, 45), (600, 1_200)], ids=["fails", "has no bounds"])
def test_the_sandbox_runs_a_consumer_with_a_backoff_of_the_user_up_to_the_dead_letter(
    answer: float, seconds: float, sandbox: Sandbox
) -> None:  # SPEC A2, C1, N4
    work(sandbox, consumer_with_changed_backoff(answer, max_attempts=3), {})
    sandbox.run()
    failures = [each.failure for each in sandbox.messages("orders-dlq")]
    assert [(each.attempts, each.reason) for each in failures if each] == [(3, "exhausted")]
    assert sandbox.elapsed >= seconds


def test_a_step_whose_backoff_fails_gives_a_copy_the_default_delay_or_passes_a_local_retry_on(caplog: Caplog) -> None:
    """SPEC E3, E7, I5. A copy with a delay beyond 12 hours is passed on too."""
    reported, wire = settle(consumer_with_changed_backoff("60", lambda backoff: [SendAgain("slow", delay=backoff)]))
    assert reported == []
    assert 15 <= wire.sent_entries()[0]["DelaySeconds"] <= 30
    locally = consumer_with_changed_backoff(-1, lambda backoff: [LocalRetry(3, backoff), RetryInPlace()])
    assert settle(locally.replace(backoff=Fixed(60)))[1].visibilities() == {"handle-m1": 60}
    of_a_copy, of_a_local_retry = (field(line, "text") for line in lines(caplog, "backoff_failed"))
    assert of_a_copy == (
        "SendAgain('slow')'s delay failed: delay(1) returned '60', which is not a number of seconds, 0 or more. The "
        "default backoff delays this copy."
    )
    assert of_a_local_retry.startswith("LocalRetry's delay failed: delay(1) returned -1, which")
    too_long = consumer_with_changed_backoff(43_201, lambda backoff: [SendAgain("slow", delay=backoff), DeadLetter()])
    assert targets(settle(too_long)[1]) == ["orders-dlq"]
    assert len(lines(caplog, "step_passed_on")) == 1
