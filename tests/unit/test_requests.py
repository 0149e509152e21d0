"""The time limit of requests: the client, requests that hang, and requests that outlive their invocation."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from tarry import Consumer, consumer
from tarry.message.invocation import Invocation
from tarry.sqs.client import Lookups, Requests, make_client
from tarry.sqs.refusals import NoAnswer, OutOfTime
from tarry.support.values import QueueArn
from tarry.world import RealThreads, World, use
from tests.handlers import plain
from tests.loglines import Caplog, lines
from tests.records import Context, event, failed, record
from tests.settled import orders
from tests.wire import Request, TestClock, Wire, arn, http_answer, session

CHANGE, SEND, DELETE = "ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"
ORDERS = QueueArn(arn("orders"))
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

    def hang_with_nine_others(self) -> int:
        if len(self.asked) < 10:
            self.resumed.wait(60)
            return 200
        time.sleep(0.1)  # an eleventh request would come now
        return self.hang()

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


def test_many_hanging_requests_do_not_add_up(sqs: HangingSqs) -> None:  # SPEC G6, G1
    sqs.answers = [sqs.hang_with_nine_others] * 99
    names = [f"retry-{index}" for index in range(150)]
    assert sqs.respond(plain(), events(*names)) == names
    assert len(sqs.asked) == 10, "more at once, or requests after the response"


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


def test_an_invocation_waits_in_another_thread_for_the_look_up_that_another_one_makes() -> None:  # SPEC A6, I1
    """Two invocations at once in one process: otherwise the second would wait on its event loop."""
    is_asked, may_answer = threading.Event(), threading.Event()
    first, second = threading.Event(), threading.Event()

    def hang(_: Request) -> None:
        is_asked.set()
        may_answer.wait(60)

    with Wire(fails={"GetQueueAttributes": hang}) as wire:
        lookups = [Lookups(Requests(invocation_in(wire.world)), LOG) for _ in range(2)]
        lookups[0].prepare(ORDERS, first.set)
        assert is_asked.wait(60)
        lookups[1].prepare(ORDERS, second.set)
        assert not second.is_set()
        may_answer.set()
        assert first.wait(60)
        assert second.wait(60)
    assert len(wire.requests) == 1


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
    """Threads that never start, and events that are never set, with the timeouts of their waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def start(self, _: Any) -> None: ...

    def event(self) -> "HangingThreads":
        return self

    def wait(self, timeout: float) -> None:
        self.waits.append(timeout)


def hanging_requests(remaining: float | None) -> tuple[Requests, list[float]]:
    threads: Any = HangingThreads()
    return Requests(invocation_in(World(TestClock(), threads=threads), remaining)), threads.waits


@pytest.mark.parametrize(
    ("is_loaded", "share", "all_", "what"),
    [(True, 2.98, 29.8, "SQS did not answer"), (False, 9.83, 29.5, "boto3 was not loaded")],
)
def test_in_a_new_process_requests_have_time_to_load_boto3(
    is_loaded: bool, share: float, all_: float, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G4, G6. After a crash the process is new, and a tenth of the time left may be too little for isolation."""
    monkeypatch.setattr(World, "is_loaded", is_loaded)
    requests, waits = hanging_requests(30)
    [result] = requests.all([lambda: None], share=0.1)
    assert (type(result), str(result)) == (NoAnswer, f"{what} in the time that was left")
    requests.all([lambda: None])
    list(requests.each([lambda: None]))
    requests.load()
    assert waits == [pytest.approx(share, abs=0.05), *[pytest.approx(all_, abs=0.15)] * (2 if is_loaded else 3)]


def test_without_a_deadline_one_request_needs_no_thread_and_two_are_made_at_once() -> None:  # SPEC G6
    requests, waits = hanging_requests(None)
    assert (requests.all([lambda: 1]), waits) == ([1], [])
    assert [type(result) for result in requests.all([lambda: 1, lambda: 2])] == [NoAnswer, NoAnswer]
    assert len(waits) == 2


def test_no_request_is_begun_whose_answer_could_not_be_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC E6, G6. A wait that ended at the limit leaves some nanoseconds: a copy would be sent, but not confirmed."""
    monkeypatch.setattr(World, "is_loaded", True)
    requests, waits = hanging_requests(0.204)
    [result] = requests.all([lambda: None])
    assert (type(result), str(result), waits) == (OutOfTime, "no time left for a request", [])
    with pytest.raises(OutOfTime):
        requests.call("list_queues")
