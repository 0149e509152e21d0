"""The time limit of requests: the client, requests that hang, and requests that outlive their invocation."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from tarry import Consumer, consumer
from tarry.message.invocation import Invocation
from tarry.sqs.client import Lookups, RequestBroken, Requests, client_of, make_client
from tarry.sqs.refusals import NoAnswer, OutOfTime
from tarry.support.values import QueueArn
from tarry.world import RealThreads, World, use
from tests.handlers import plain
from tests.loglines import Caplog, field, lines
from tests.records import Context, event, failed, record
from tests.settled import orders
from tests.wire import NoThreads, Queue, Request, TestClock, Wire, arn, client_error, http_answer, new_client, session

CHANGE, SEND, DELETE = "ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"
ORDERS, DLQ = QueueArn(arn("orders")), QueueArn(arn("dlq"))
LOG = consumer(print).log


def invocation_in(world: World, remaining: float | None = 30) -> Invocation:
    return Invocation(world, None if remaining is None else Context(remaining), lambda _: None, LOG)


def events(*names: str, queue: str = "orders") -> dict[str, Any]:
    return event(*(record(name, name, queue) for name in names))


def test_the_client_has_short_timeouts_makes_two_tries_and_does_not_check_parameters_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC G6
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = make_client()
    config = client.meta.config
    assert (config.connect_timeout, config.read_timeout, config.retries["total_max_attempts"]) == (1, 5, 2)
    client.meta.events.register("before-call.sqs", lambda **_: (SimpleNamespace(status_code=200), {"Attributes": {}}))
    assert client.get_queue_attributes(QueueUrl=1)["Attributes"] == {}


class HangingSqs:
    """SQS behind tarry's own client. ``answers`` produce the statuses of the next settlement requests; later succeed.

    Where a request hangs, all waits for answers end at once: the clock then is at the end of their timeout.
    """

    def __init__(self) -> None:
        self.answers: list[Callable[[], int]] = []
        self.asked: list[str] = []
        self.most_bytes = 1_048_576
        """The size above which entries are refused."""
        self.look_up: Callable[[], object] = lambda: None
        self.hanging, self.resumed = threading.Event(), threading.Event()
        self.clock = TestClock()
        self.threads = {*threading.enumerate()}
        """The threads that run before the test."""

    def hang(self) -> int:
        """Give no answer until the test resumes it; then succeed."""
        self.hanging.set()
        self.resumed.wait(60)
        return 200

    def hang_then_fail(self) -> int:
        self.hang()
        return 500

    def client(self) -> Any:
        client = make_client(session())
        client.meta.events.register_last("before-send.sqs", self.answer)
        return client

    def answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        operation, asked = request.headers["X-Amz-Target"].decode().rpartition(".")[2], json.loads(request.body)
        if operation == "GetQueueAttributes":
            self.look_up()
            queue = asked["QueueUrl"].rpartition("/")[2]
            if queue == "unreadable":
                return http_answer(400, {})
            dead_letter = json.dumps({"deadLetterTargetArn": arn("unreadable" if queue == "bills" else "dlq")})
            return http_answer(200, {"Attributes": {"RedrivePolicy": dead_letter, "VisibilityTimeout": "180"}})
        self.asked.append(operation)
        status = self.answers.pop(0)() if self.answers else 200
        wire = Wire(refuses=dict.fromkeys([SEND, DELETE, CHANGE], self._refuses))
        return http_answer(status, wire._success(Request(operation, asked)) if status == 200 else {"__type": "Failure"})

    def _refuses(self, _: Request, entry: dict[str, Any]) -> tuple[str, str] | None:
        is_large = len(entry.get("MessageBody", "")) > self.most_bytes
        return ("InvalidParameterValue", "Message must be shorter than 2048 bytes.") if is_large else None

    def respond(self, handler: Consumer[Any], batch: dict[str, Any], remaining: float = 2) -> list[str]:
        """Return what the consumer reports in time; it then ends all requests that hang, and their threads."""
        began = self.clock.now
        reported = failed(handler(batch, Context(remaining)))
        assert self.clock.now - began < remaining
        self.resumed.set()
        for thread in {*threading.enumerate()} - self.threads:
            thread.join(60)
        return reported


class ImpatientThreads(RealThreads):
    """Threads that wait as `HangingSqs` says."""

    def __init__(self, sqs: HangingSqs) -> None:
        self._sqs = sqs

    def event(self) -> Any:
        sqs = self._sqs

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                while not self.is_set():
                    super().wait(0.002)
                    if sqs.hanging.is_set() and timeout is not None:
                        sqs.clock.now += timeout
                        break
                return self.is_set()

        return Event()


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingSqs]:
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    sqs = HangingSqs()
    with use(World(clock=sqs.clock, threads=ImpatientThreads(sqs), client_factory=sqs.client)):
        plain()(events("retry-0", "dead-0"), Context())  # imports and makes the client
        sqs.asked.clear()
        sqs.threads = {*threading.enumerate()}
        yield sqs
    sqs.resumed.set()


def test_a_request_that_fails_is_tried_a_second_and_no_third_time(sqs: HangingSqs) -> None:  # SPEC G6
    sqs.answers = [lambda: 500]
    assert sqs.respond(plain(), events("dead-1")) == []
    assert sqs.asked == [SEND, SEND, DELETE]
    sqs.asked, sqs.answers = [], [lambda: 500] * 9
    assert sqs.respond(plain(), events("retry-1")) == ["retry-1"]
    assert sqs.asked == [CHANGE] * 2


@pytest.mark.parametrize(
    ("names", "answers", "asked", "reported"),
    [
        pytest.param("retry-1", "hang", [CHANGE], "retry-1", id="retry"),
        pytest.param("retry-1", "hang_then_fail", [CHANGE], "retry-1", id="no second try after the response"),
        # a message that was reported as failed stays: a duplicate is better than a loss
        pytest.param("dead-1", "hang", [SEND], "dead-1", id="no delete after a late confirmation"),
        # Lambda deletes the original; if reported, it would be redelivered and dead-lettered a second time
        pytest.param("dead-1", "ok hang", [SEND, DELETE], "", id="a confirmed dead letter whose delete hangs"),
        pytest.param("retry-1 dead-1 ok-1 exit-1 ok-2", "hang " * 9, None, "retry-1 dead-1 exit-1 ok-2", id="mixed"),
    ],
)
def test_a_hanging_request_does_not_prevent_the_response(
    names: str, answers: str, asked: list[str] | None, reported: str, sqs: HangingSqs
) -> None:  # SPEC G6, A2, E6, F4
    sqs.answers = [getattr(sqs, each, lambda: 200) for each in answers.split()]
    assert sqs.respond(plain(), events(*names.split())) == reported.split()
    assert asked is None or sqs.asked == asked


def test_a_confirmed_dead_letter_is_not_reported_while_another_of_its_request_is_sent_again(sqs: HangingSqs) -> None:
    """SPEC E6, F4. The other one was refused for its size and is sent with a smaller failure record, which hangs."""
    sqs.most_bytes = 2_048
    sqs.answers = [lambda: 200, sqs.hang]
    batch = event(record("small", "dead-1", "bills"), record("x" * 3_000, "dead-2", "bills"))
    assert sqs.respond(plain(), batch) == ["dead-2"]
    assert sqs.asked == [SEND, SEND]


def test_a_request_that_outlives_its_invocation_does_not_disturb_the_next(sqs: HangingSqs) -> None:  # SPEC A6, G6
    sqs.answers = [sqs.hang_then_fail]
    assert failed(plain()(events("retry-1"), Context(remaining=2))) == ["retry-1"]
    sqs.hanging.clear()
    assert sqs.respond(plain(), events("dead-2", "retry-2")) == ["retry-2"]
    assert sqs.asked == [CHANGE, SEND, DELETE, CHANGE]


def test_a_hanging_look_up_and_a_client_that_is_slow_to_make_do_not_prevent_the_response(sqs: HangingSqs) -> None:
    sqs.look_up = sqs.hang  # SPEC G6, F1
    assert sqs.respond(plain(), events("dead-1", "ok-1", queue="refunds")) == ["dead-1"]
    sqs.resumed.clear()
    sqs.asked.clear()
    world = World(clock=sqs.clock, threads=ImpatientThreads(sqs), client_factory=lambda: sqs.hang() and sqs.client())
    with use(world):
        assert sqs.respond(consumer(lambda message: message.defer(5)), events("m1")) == ["m1"]
    assert sqs.asked == []


# the parts


def test_a_look_up_that_there_is_no_time_for_makes_no_client() -> None:  # SPEC I2
    made, ended = list[bool](), threading.Event()
    world = World(TestClock(), client_factory=lambda: made.append(True))
    Lookups(Requests(invocation_in(world, 0.1)), LOG).prepare(ORDERS, ended.set)
    assert ended.wait(60)
    assert made == []


def test_a_queue_that_is_known_as_a_source_or_a_target_is_not_looked_up_again(caplog: Caplog) -> None:  # SPEC F1
    """Its size limit is 1 MiB if its attributes, or the right to read them, lack it."""
    odd = SimpleNamespace(attributes=lambda _: {"VisibilityTimeout": "soon"})
    queues = {"orders": Queue("dlq", maximum_message_size=2_048), "dlq": odd}
    with Wire(queues=cast("Any", queues)) as wire:
        lookups = Lookups(Requests(invocation_in(wire.world)), LOG)
        assert [lookups.knows(ORDERS), lookups.knows_size(ORDERS), lookups.known(ORDERS)] == [False, False, None]
        for target, requests in ((None, 1), (ORDERS, 1), (DLQ, 2), (DLQ, 2)):
            ended = threading.Event()
            lookups.prepare(ORDERS, ended.set, lambda _, target=target: target)
            assert ended.wait(60)
            assert len(wire.requests) == requests
        assert [lookups.knows(ORDERS), lookups.knows_size(ORDERS)] == [True, True]
        assert [lookups.knows(DLQ), lookups.knows_size(DLQ)] == [False, True]
        assert [lookups.maximum_message_size(queue) for queue in (ORDERS, DLQ)] == [(2_048, True), (1_048_576, True)]
        assert len(wire.requests) == 2
        assert [lookups.visibility_timeout(queue) for queue in (ORDERS, DLQ)] == [180, 30]
        wire.fails["GetQueueAttributes"] = client_error("OverLimit")
        assert [lookups.maximum_message_size(QueueArn(arn("far"))) for _ in range(2)] == [(1_048_576, False)] * 2
    [line] = lines(caplog, "look_up_failed")
    assert str(field(line, "text")).endswith("Its size limit is unknown; 1 MiB is assumed.")


def test_without_a_thread_a_queue_is_not_looked_up_before_it_is_needed() -> None:  # SPEC A2
    ended: list[bool] = []
    with orders() as wire:
        wire.world.threads = NoThreads()
        Lookups(Requests(invocation_in(wire.world)), LOG).prepare(ORDERS, lambda: ended.append(True))
    assert (ended, wire.requests) == ([True], [])


def test_an_invocation_waits_in_another_thread_for_the_look_up_that_another_one_makes() -> None:  # SPEC A6, I1
    """Two invocations at once in one process: otherwise the second would wait on its event loop."""
    targets: list[Any] = []
    is_asked, may_answer = threading.Event(), threading.Event()
    first, second = threading.Event(), threading.Event()

    def hang(_: Request) -> None:
        is_asked.set()
        may_answer.wait(60)

    with orders() as wire:
        wire.fails["GetQueueAttributes"] = hang
        lookups = [Lookups(Requests(invocation_in(wire.world)), LOG) for _ in range(2)]
        lookups[0].prepare(ORDERS, first.set)
        assert is_asked.wait(60)
        lookups[1].prepare(ORDERS, second.set, lambda facts: targets.append(facts.dead_letter))
        assert not second.is_set()
        may_answer.set()
        assert first.wait(60)
        assert second.wait(60)
    assert (len(wire.requests), targets) == (1, [QueueArn(arn("orders-dlq"))])


class Reported(Invocation):
    """An invocation whose report begins as soon as a request has looked for its observer."""

    observers: list[Any]

    @property
    def observer(self) -> Any:
        return self.observers.pop() if self.observers else None

    @observer.setter
    def observer(self, observer: Any) -> None: ...


def test_a_request_that_the_report_overtakes_is_made(caplog: Caplog) -> None:
    """SPEC L5. Its own failure would count as that of the queue, also for the next invocation."""
    with orders() as wire:
        invocation = Reported(wire.world, Context(30), lambda _: None, LOG)
        invocation.observers = [SimpleNamespace(requests=[])]
        assert Lookups(Requests(invocation), LOG).source(ORDERS).error is None
    assert len(wire.requests) == 1
    assert lines(caplog, "look_up_failed") == []


class HangingThreads:
    """Threads that never run, and events that are never set: each wait lasts a little longer than it may."""

    def __init__(self, clock: TestClock) -> None:
        self.started = 0
        self.waits: list[float] = []
        self._clock = clock

    def start(self, _: Any) -> None:
        self.started += 1

    def event(self) -> "HangingThreads":
        return self

    def wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        self._clock.now += timeout + 0.1


def hanging_requests(remaining: float | None) -> tuple[Requests, Any]:
    threads: Any = HangingThreads(clock := TestClock())
    return Requests(invocation_in(World(clock, threads=threads), remaining)), threads


@pytest.mark.parametrize(
    ("is_loaded", "core_share", "share", "all_", "what"),
    [
        (True, 0.1, 2.98, 29.8, "SQS did not answer"),
        (False, 1, 29.6 / 3, 29.6, "boto3 was not loaded"),
        (False, 0.3, 29.5 / 3, 29.5, "boto3 was not loaded"),
        (False, 0.1, 28.5 / 3, 28.5, "boto3 was not loaded"),
    ],
)
def test_in_a_new_process_requests_have_time_to_load_boto3_and_the_response_of_a_slow_core_has_more(
    is_loaded: bool, core_share: float, share: float, all_: float, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G4, G6. After a crash the process is new, and a tenth of the time left may be too little for isolation."""
    monkeypatch.setattr(World, "is_loaded", is_loaded)
    monkeypatch.setattr("tarry.sqs.client.CORE_SHARE", core_share)

    def waits(work: Callable[[Requests], Any]) -> list[float]:
        requests, threads = hanging_requests(30)
        work(requests)
        return [round(each, 3) for each in threads.waits]

    results: list[Any] = []
    assert waits(lambda requests: results.extend(requests.all([list, list], share=0.1))) == [round(share, 3), 0]
    assert [(type(each), str(each)) for each in results] == [(NoAnswer, f"{what} in the time that was left")] * 2
    assert waits(lambda requests: requests.all([list])) == [all_]
    assert waits(lambda requests: [*requests.each([list])]) == [all_]
    assert waits(Requests.load) == ([] if is_loaded else [all_])


@pytest.mark.parametrize(("jobs", "threads"), [(1, 1), (2, 2), (10, 10), (11, 10)])
def test_requests_are_made_in_a_thread_each_and_in_ten_at_most_and_waits_for_them_do_not_add_up(
    jobs: int, threads: int
) -> None:  # SPEC G1, G6
    requests, hanging = hanging_requests(30)
    requests.all([list] * jobs)
    assert (hanging.started, hanging.waits[1:]) == (threads, [0] * (jobs - 1))


def test_without_a_deadline_one_request_needs_no_thread_and_two_are_made_at_once() -> None:  # SPEC G6
    requests, threads = hanging_requests(None)
    assert (requests.all([lambda: 1]), threads.started) == ([1], 0)
    assert [type(result) for result in requests.all([lambda: 1, lambda: 2])] == [NoAnswer, NoAnswer]
    assert threads.started == len(threads.waits) == 2


@pytest.mark.parametrize("is_loaded", [True, False])
def test_no_request_is_begun_whose_answer_could_not_be_awaited(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC E6, G6. A wait that ended at the limit leaves some nanoseconds: a copy would be sent, but not confirmed."""
    monkeypatch.setattr(World, "is_loaded", is_loaded)
    monkeypatch.setattr("tarry.sqs.client.CORE_SHARE", 1)
    kept = 0.2 if is_loaded else 0.4
    requests, threads = hanging_requests(kept + 0.004)
    text = f"no time left for a request{'' if is_loaded else ', because boto3 was not loaded in time'}"
    [result] = requests.all([lambda: None])
    assert (type(result), str(result), threads.started) == (OutOfTime, text, 0)
    with pytest.raises(OutOfTime, match=f"^{text}$"):
        requests.call("list_queues")
    if is_loaded:
        requests, threads = hanging_requests(kept + 0.006)
        assert [type(each) for each in requests.all([list])] == [NoAnswer]


@pytest.mark.parametrize(
    ("is_loaded", "is_making", "loading", "begins"),
    [(False, False, 16, True), (False, False, 16.01, False), (True, False, 16.01, True), (False, True, 16.01, True)],
)
def test_loading_boto3_does_not_begin_if_it_is_expected_to_take_1_6_times_as_long_as_there_is(
    is_loaded: bool, is_making: bool, loading: float, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC G6, I2
    monkeypatch.setattr(World, "is_loaded", is_loaded)
    monkeypatch.setattr(World, "is_making", lambda *_: is_making)
    monkeypatch.setattr("tarry.sqs.client.seconds_to_load", lambda: loading)
    requests, threads = hanging_requests(10)
    assert [type(each) for each in requests.all([list])] == [NoAnswer if begins else OutOfTime]
    assert threads.started == begins


def test_until_a_request_is_measured_it_is_expected_to_take_a_tenth_of_the_time_of_loading() -> None:  # SPEC I2
    """It is measured with the next one, and forgotten slowly."""
    clock = TestClock()
    world = World(clock, client_factory=lambda: clock.sleep(10) or new_client())
    client_of(world)
    assert (world.loading_seconds, world.request_seconds) == (10, 1)


def test_an_exit_in_a_request_is_an_error_of_the_request() -> None:  # SPEC A2
    """As of a hook of botocore that calls `sys.exit`: in a thread, it would end nothing but the thread."""
    requests = Requests(invocation_in(World(TestClock())))
    [result] = requests.all([sys.exit])
    assert (type(result), str(result)) == (RequestBroken, "SystemExit()")
