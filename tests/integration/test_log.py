"""The log of a consumer: states, and one line for each transition except a plain commit."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tarry import (
    Batch,
    DeadLetter,
    DropMessage,
    Failure,
    Fixed,
    LogOptions,
    Message,
    Outcome,
    RetryInPlace,
    State,
    batch_consumer,
    consumer,
)
from tarry.record.attribute import body_sum
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire, client_error

SECRET = "4111-1111-1111-1111"


class TarryLines(logging.Handler):
    """A handler that keeps the records of the logger ``tarry``."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def named(self, name: str) -> list[Any]:
        return [line for line in self.records if getattr(line, "event", None) == name]

    def text(self) -> str:
        """Return the lines as a plain text log and a log with every field would show them."""
        formatter = logging.Formatter("%(levelname)s %(message)s")
        return "\n".join(f"{formatter.format(line)} {line.__dict__}" for line in self.records)


@pytest.fixture
def lines() -> Iterator[TarryLines]:
    logger, handler = logging.getLogger("tarry"), TarryLines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


def fails(message: Message) -> None:
    raise ValueError("no stock")


def run(handle: Callable[[Message], Any], *records: dict[str, Any], wire: Wire | None = None, **settings: Any) -> Any:
    with wire or orders():
        return consumer(**{"backoff": Fixed(60), **settings})(handle)(event(*records or (record(),)), Context())


# states


def test_the_states_have_the_names_of_their_values() -> None:  # SPEC L1
    names = "READY IN_FLIGHT WAITING_RETRY COMMITTED DEAD_LETTERED DISCARDED DEFERRED RESENT".split()
    assert [state.name for state in State] == names
    assert [str(state) for state in State] == names


# one line for each transition


def test_a_plain_commit_is_not_logged(lines: TarryLines) -> None:  # SPEC L2
    run(lambda message: None, *batch_of(20)["Records"])
    run(lambda message: message.ack())
    assert lines.records == []


TRANSITIONS: list[Any] = [
    (fails, {}, "waiting_retry", "WAITING_RETRY", "WARNING", {"delay": 60, "reason": "error"}),
    (lambda m: m.retry(9), {}, "waiting_retry", "WAITING_RETRY", "WARNING", {"delay": 9}),
    (fails, {"max_attempts": 1}, "dead_lettered", "DEAD_LETTERED", "ERROR", {"reason": "exhausted"}),
    (lambda m: m.reject("bad"), {}, "dead_lettered", "DEAD_LETTERED", "ERROR", {"reason": "rejected"}),
    (lambda m: m.discard("old"), {}, "discarded", "DISCARDED", "INFO", {"reason": "old"}),
    (lambda m: m.defer(9), {}, "deferred", "DEFERRED", "INFO", {"delay": 9}),
]


@pytest.mark.parametrize(("handle", "settings", "name", "state", "level", "fields"), TRANSITIONS)
def test_each_other_transition_is_one_line_with_its_fields(
    handle: Any, settings: Any, name: str, state: str, level: str, fields: dict[str, Any], lines: TarryLines
) -> None:  # SPEC L2
    run(handle, name="orders-consumer", **settings)
    [line] = lines.records
    assert (line.event, line.state, line.levelname) == (name, state, level)
    assert (line.message_id, line.delivery_id, line.queue, line.consumer) == ("m1", "m1", "orders", "orders-consumer")
    assert (line.attempt, line.max_attempts) == (1, settings.get("max_attempts", 5))
    assert {field: getattr(line, field) for field in fields} == fields


def test_a_failure_is_logged_with_its_error_type_and_fingerprint(lines: TarryLines) -> None:  # SPEC L2
    run(fails)
    [line] = lines.records
    assert (line.error, line.error_type) == ("ValueError: no stock", "ValueError")
    assert len(line.fingerprint) == 12


def test_the_text_of_a_line_contains_the_main_fields(lines: TarryLines) -> None:  # SPEC L2
    run(fails)
    text = lines.records[0].getMessage()
    for part in ["waiting_retry", "message_id=m1", "queue=orders", "attempt=1", "delay=60", "no stock"]:
        assert part in text


def test_released_messages_are_logged_without_an_error(lines: TarryLines) -> None:  # SPEC L2, A5
    def handler(message: Message) -> None:
        raise SystemExit

    run(handler, *batch_of(3)["Records"])
    assert [line.message_id for line in lines.named("waiting_retry")] == ["m0"]
    released = lines.named("released")
    assert [(line.message_id, line.state, line.levelname) for line in released] == [
        ("m1", "READY", "INFO"),
        ("m2", "READY", "INFO"),
    ]
    assert not any(hasattr(line, "error") for line in released)


def test_each_message_of_a_batch_has_its_own_line(lines: TarryLines) -> None:  # SPEC L2
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        raise ValueError

    with orders():
        handler(batch_of(12), Context())
    assert sorted(line.message_id for line in lines.records) == sorted(f"m{index}" for index in range(12))


def test_a_visibility_change_that_failed_is_logged(lines: TarryLines) -> None:  # SPEC G1, L2
    wire = orders(fails={"ChangeMessageVisibilityBatch": client_error("InternalError", "try later", 500)})
    run(fails, wire=wire)
    [line] = lines.named("waiting_retry")
    assert not hasattr(line, "delay")
    assert "InternalError" in line.not_settled


def test_a_failed_dead_lettering_is_logged_with_its_message_and_error(lines: TarryLines) -> None:  # SPEC E4, F4
    wire = orders(fails={"SendMessageBatch": client_error("InternalError", "try later", 500)})
    run(fails, wire=wire, max_attempts=1)
    [line] = lines.named("unhandled")
    assert (line.levelname, line.message_id, line.error_type) == ("ERROR", "m1", "ValueError")
    assert "InternalError" in line.not_sent


def test_a_line_has_the_stable_id_and_the_delivery_id(lines: TarryLines) -> None:  # SPEC L2, K3
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "stable", "carried": 2}
    run(fails, record(attributes={"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}))
    [line] = lines.records
    assert (line.message_id, line.delivery_id, line.attempt) == ("stable", "m1", 3)


class AcknowledgesFailures:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        return Outcome.ack()


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("handle", [fails, lambda message: message.retry()], ids=["an error", "the last retry"])
@pytest.mark.parametrize(("step", "name"), [(DropMessage(), "discarded"), (AcknowledgesFailures(), "committed")])
def test_a_failure_that_a_step_drops_or_acknowledges_is_logged_as_a_warning(
    step: Any, name: str, handle: Any, queue: str, lines: TarryLines
) -> None:  # SPEC L2
    run(handle, record(queue=queue), on_failure=[step], backoff=None, max_attempts=1)
    [line] = lines.records
    assert (line.event, line.levelname) == (name, "WARNING")


# the exception


def test_a_traceback_is_logged_once_and_begins_at_the_handler(lines: TarryLines) -> None:  # SPEC L2
    run(fails)
    [line] = lines.records
    text = logging.Formatter("%(message)s").format(line)
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count("ValueError: no stock") == 2  # in the sentence, and under the traceback
    assert "tarry/execution" not in text


def test_the_exception_of_a_dead_letter_is_logged_once(lines: TarryLines) -> None:  # SPEC L2
    run(fails, max_attempts=1)
    assert sum(line.exc_text is not None for line in lines.records) == 1


@pytest.mark.parametrize("exit_with", [SystemExit(2), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_the_exception_that_ends_a_batch_is_logged_once(
    exit_with: BaseException, lines: TarryLines
) -> None:  # SPEC L2, A5
    def handler(message: Message) -> None:
        raise exit_with

    run(handler, *batch_of(3)["Records"])
    assert sum(line.exc_text is not None for line in lines.records) == 1


def test_an_exception_after_the_verdict_is_logged_but_ignored(lines: TarryLines) -> None:  # SPEC B5, L2
    def handler(message: Message) -> None:
        message.ack()
        raise ValueError("too late")

    assert failed(run(handler)) == []
    [line] = lines.records
    assert "too late" in line.error


def test_an_exception_after_the_verdict_on_the_batch_is_logged_but_ignored(lines: TarryLines) -> None:  # SPEC B5, L2
    @batch_consumer
    def handler(batch: Batch) -> None:
        batch.ack_all()
        raise ValueError("too late")

    with orders():
        assert failed(handler(batch_of(3), Context())) == []
    assert "too late" in lines.text()


def test_a_raised_verdict_is_logged_without_a_traceback(lines: TarryLines) -> None:  # SPEC L2
    from tarry import Retry

    def handler(message: Message) -> None:
        raise Retry(60)

    run(handler)
    assert lines.records[0].exc_text is None


# secrets


class RaisesKeyError:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        raise KeyError("of the step")


@pytest.mark.parametrize(("handle", "settings"), [(handle, settings) for handle, settings, *_ in TRANSITIONS])
def test_bodies_are_not_logged_by_default(handle: Any, settings: Any, lines: TarryLines) -> None:  # SPEC L2
    run(handle, record(SECRET), **settings)
    assert lines.records
    assert SECRET not in lines.text()


def test_bodies_are_not_logged_when_tarry_itself_has_problems(lines: TarryLines) -> None:  # SPEC L2
    denied = client_error("AccessDenied", status=403)
    wire = orders(fails={"GetQueueAttributes": denied, "ChangeMessageVisibilityBatch": denied})
    run(fails, record(SECRET), wire=wire, on_failure=[RaisesKeyError()], backoff=None)
    assert lines.records
    assert SECRET not in lines.text()


@pytest.mark.parametrize(("handle", "settings"), [(handle, settings) for handle, settings, *_ in TRANSITIONS])
def test_bodies_are_logged_on_request(handle: Any, settings: Any, lines: TarryLines) -> None:  # SPEC L2
    run(handle, record("the body"), log=LogOptions(body=True), **settings)
    assert all(line.body == "the body" for line in lines.records)


class Line(BaseModel):
    number: int


class Card(BaseModel):
    kind: Literal["card"]


class Cash(BaseModel):
    kind: Literal["cash"]


class Order(BaseModel, extra="forbid"):
    number: int
    lines: dict[str, Line] = {}
    payment: Annotated[Card | Cash, Field(discriminator="kind")] | None = None


def validates_itself(message: Message) -> None:
    Order.model_validate_json(message.body)


def raises_from_its_validation(message: Message) -> None:
    try:
        validates_itself(message)
    except ValidationError as error:
        raise RuntimeError("no order") from error


def raises_a_group(message: Message) -> None:
    try:
        validates_itself(message)
    except ValidationError as error:
        raise ExceptionGroup("several", [error, ExceptionGroup("more", [error])]) from error


SECRET_BODIES: list[Any] = [
    SECRET,
    f'{{"number": {SECRET}',
    {"number": SECRET},
    {"number": 1, SECRET: 2},
    {"number": 1, "lines": {SECRET: {"number": SECRET}}},
    {"number": 1, "payment": {"kind": SECRET}},
    [SECRET],
    f"{SECRET}\x00\x1f",
]
READERS: list[Any] = [
    pytest.param(lambda message: message.json()[0]["number"], {}, id="message.json()"),
    pytest.param(lambda message: json.loads(message.body)[0]["number"], {}, id="json.loads"),
    pytest.param(lambda message: message.json(), {"model": Order}, id="model"),
    pytest.param(lambda message: message.json(), {"model": Order, "envelope": "sns"}, id="model in SNS"),
    pytest.param(validates_itself, {}, id="own validation"),
    pytest.param(raises_from_its_validation, {}, id="own validation as a cause"),
    pytest.param(raises_a_group, {}, id="own validation in a group"),
    pytest.param(lambda message: TypeAdapter(dict[int, int]).validate_json(message.body), {}, id="type adapter"),
]


@pytest.mark.parametrize("max_attempts", [1, 5])
@pytest.mark.parametrize(("handle", "settings"), READERS)
def test_no_body_is_in_the_line_of_a_message_that_cannot_be_read(
    handle: Any, settings: Any, max_attempts: int, lines: TarryLines, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L2, D4
    logging.getLogger("tarry").setLevel(logging.DEBUG)
    bodies = [*SECRET_BODIES, {"Type": "Notification", "TopicArn": "t", "Message": SECRET}]
    records = [record(body, f"m{index}") for index, body in enumerate(bodies)]
    run(handle, *records, max_attempts=max_attempts, **settings)
    assert len(lines.records) >= 6  # a body is not invalid for every reader
    assert SECRET not in lines.text()
    assert SECRET not in "".join(capsys.readouterr())


def test_a_validation_error_of_the_handler_names_the_fields_of_its_model(lines: TarryLines) -> None:
    run(validates_itself, record({"lines": {SECRET: {"number": "x"}}}))
    assert lines.records[0].error == (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Order: number: Field required; "
        "lines.<key>.number: Input should be a valid integer, unable to parse string as an integer"
    )


def test_the_text_of_any_other_exception_is_the_users_and_redact_can_remove_it(lines: TarryLines) -> None:
    def handler(message: Message) -> None:
        _ = {}[message.body]

    run(handler, record(SECRET))
    run(handler, record(SECRET), log=LogOptions(redact=_mask))
    users, redacted = lines.records
    assert users.error == f"KeyError: '{SECRET}'"
    assert SECRET not in str(redacted.__dict__)


def test_message_attributes_are_not_logged(lines: TarryLines) -> None:  # SPEC L2
    attributes = {"card": {"stringValue": SECRET, "dataType": "String"}}
    run(fails, record(attributes=attributes), max_attempts=1)
    assert SECRET not in lines.text()


# redact


def _mask(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.replace(SECRET, "****") if isinstance(value, str) else value for name, value in fields.items()}


def _raises_with_a_secret(message: Message) -> None:
    raise ValueError(f"card {SECRET} declined")


def _gives_two_verdicts(message: Message) -> None:
    message.reject(f"card {SECRET}")
    message.fail(ValueError(SECRET))


def _raises_after_ack(message: Message) -> None:
    message.ack()
    _raises_with_a_secret(message)


@pytest.mark.parametrize("debug", [False, True], ids=["info", "debug"])
@pytest.mark.parametrize(
    ("handle", "settings"),
    [
        pytest.param(_raises_with_a_secret, {}, id="retried"),
        pytest.param(_raises_with_a_secret, {"max_attempts": 1}, id="dead-lettered"),
        pytest.param(_raises_with_a_secret, {"on_failure": [RetryInPlace()], "max_attempts": 1}, id="unhandled"),
        pytest.param(lambda m: m.discard(SECRET), {}, id="discarded"),
        pytest.param(lambda m: m.reject(SECRET), {}, id="rejected"),
        pytest.param(_raises_after_ack, {}, id="raised after a verdict"),
        pytest.param(_gives_two_verdicts, {}, id="two verdicts"),
    ],
)
def test_redact_is_applied_to_every_line_before_it_is_written(
    handle: Any, settings: Any, debug: bool, lines: TarryLines
) -> None:  # SPEC L2, F3
    if debug:
        logging.getLogger("tarry").setLevel(logging.DEBUG)
    run(handle, record(SECRET), log=LogOptions(body=True, redact=_mask), **settings)
    assert lines.records
    assert SECRET not in lines.text()


def test_redact_gets_the_traceback_as_a_field(lines: TarryLines) -> None:  # SPEC L2
    seen: list[dict[str, Any]] = []

    def redact(fields: dict[str, Any]) -> dict[str, Any]:
        seen.append(fields)
        return fields

    run(fails, log=LogOptions(redact=redact))
    assert "in fails" in seen[0]["traceback"]
    assert "no stock" not in lines.records[0].exc_text.splitlines()[-1]


def _drops_all(fields: dict[str, Any]) -> Any:
    return {}


def _raises(fields: dict[str, Any]) -> Any:
    raise KeyError(SECRET)


def _returns_a_number(fields: dict[str, Any]) -> Any:
    return 7


def _clears_and_raises(fields: dict[str, Any]) -> Any:
    fields.clear()
    raise KeyError


def _uses_reserved_names(fields: dict[str, Any]) -> Any:
    return {**fields, "message": "x", "args": "y", "exc_info": "z"}


@pytest.mark.parametrize("redact", [_drops_all, _raises, _returns_a_number, _clears_and_raises, _uses_reserved_names])
def test_a_failing_redact_does_not_affect_settlement_and_the_line_is_written_without_secrets(
    redact: Any, lines: TarryLines, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L2, A2
    with orders() as wire:
        options = LogOptions(body=True, redact=redact)
        response = consumer(backoff=Fixed(60), log=options)(_raises_with_a_secret)(event(record(SECRET)), Context())
    assert failed(response) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert len(lines.records) == 1
    if redact is not _uses_reserved_names:
        assert SECRET not in lines.text()
        assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize("redact", [_raises, _returns_a_number, _clears_and_raises])
def test_a_line_whose_redact_fails_keeps_what_tarry_itself_says(redact: Any, lines: TarryLines) -> None:  # SPEC L2, I7
    run(_raises_with_a_secret, record(SECRET), log=LogOptions(redact=redact), backoff=Fixed(60))
    [line] = lines.records
    assert (line.event, line.message_id, line.queue) == ("waiting_retry", "m1", "orders")
    assert (line.state, line.attempt, line.delay, line.error_type) == ("WAITING_RETRY", 1, 60, "ValueError")
    assert not hasattr(line, "error")
    assert "redact" in line.getMessage()


# hostile text


FORGED = "x\nERROR dead_lettered message_id=m2"
HOSTILE = [
    FORGED,
    "x\r\nERROR forged",
    "x\x1b[2K\x1b[1Aforged",
    "x\u2028ERROR forged",
    "x\x85forged",
    "a=b c=d",
    "\udcff",
]


def _one_line(text: str) -> bool:
    return len(text.splitlines()) == 1 and text.isprintable()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_text_cannot_forge_a_line(text: str, lines: TarryLines) -> None:  # SPEC L2
    def handler(message: Message) -> None:
        if message.body == "discard":
            message.discard(text)
        elif message.body == "reject":
            message.reject(text)
        else:
            raise ValueError(text)

    envelope = {"v": 1, "sum": body_sum("fail"), "id": text}
    hostile = {"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}
    damaged = {"Tarry": {"stringValue": json.dumps({"v": text, "sum": text}), "dataType": "String"}}
    run(
        handler,
        record("discard", "m1"),
        record("reject", "m2"),
        record("fail", "m3", attributes=hostile),
        record("fail", "m4", attributes=damaged),
        log=LogOptions(body=True),
    )
    assert len(lines.records) == 5
    for line in lines.records:
        assert _one_line(line.getMessage())


@pytest.mark.parametrize("field", ["messageId", "eventSourceARN"])
def test_a_hostile_record_cannot_forge_a_line(field: str, lines: TarryLines) -> None:  # SPEC L2
    delivered = record()
    delivered[field] += FORGED
    run(fails, delivered)
    assert all(_one_line(line.getMessage()) for line in lines.records)


def test_a_hostile_id_cannot_forge_a_debug_line(lines: TarryLines) -> None:  # SPEC L2
    logging.getLogger("tarry").setLevel(logging.DEBUG)

    def handler(message: Message) -> None:
        message.ack()
        message.reject()

    envelope = {"v": 1, "sum": body_sum("{}"), "id": FORGED}
    run(handler, record(attributes={"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}))
    assert lines.records
    assert all(_one_line(line.getMessage()) for line in lines.records)


def test_a_hostile_id_cannot_forge_a_line_on_stderr_when_the_log_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC L2
    def refuse(line: logging.LogRecord) -> bool:
        raise OSError("full")

    monkeypatch.setattr(logging.getLogger("tarry"), "filters", [refuse])
    envelope = {"v": 1, "sum": body_sum("{}"), "id": FORGED}
    run(fails, record(attributes={"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}))
    assert len(capsys.readouterr().err.splitlines()) == 1


# destinations


def test_a_line_that_cannot_be_logged_is_written_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A2, L2
    def refuse(line: logging.LogRecord) -> bool:
        raise OSError("full")

    monkeypatch.setattr(logging.getLogger("tarry"), "filters", [refuse])
    assert failed(run(fails)) == ["m1"]
    text = capsys.readouterr().err
    assert "waiting_retry" in text
    assert "m1" in text


def test_the_powertools_formatter_shows_the_fields() -> None:  # SPEC L2
    from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LambdaPowertoolsFormatter())
    logging.getLogger("tarry").addHandler(handler)
    try:
        run(fails)
    finally:
        logging.getLogger("tarry").removeHandler(handler)
    [line] = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert (line["event"], line["message_id"], line["delay"]) == ("waiting_retry", "m1", 60)
    assert line["error_type"] == "ValueError"


def test_a_logger_with_a_higher_level_gets_no_lines(lines: TarryLines) -> None:  # SPEC L2
    logging.getLogger("tarry").setLevel(logging.CRITICAL)
    assert failed(run(fails)) == ["m1"]
    assert lines.records == []


def test_the_name_of_a_consumer_is_that_of_its_function_by_default(lines: TarryLines) -> None:  # SPEC L2
    run(fails)
    assert lines.records[0].consumer == "fails"


def test_the_line_of_a_dead_letter_names_its_queue(lines: TarryLines) -> None:  # SPEC L2
    run(fails, on_failure=[DeadLetter(queue="graveyard")], backoff=None)
    assert lines.records[0].dead_letter_queue == "graveyard"


# size


HUGE = "x" * 5_000_000


def huge(message: Message) -> None:
    try:
        raise KeyError(HUGE)
    except KeyError as error:
        raise ValueError(HUGE) from error


def discards_with_a_huge_reason(message: Message) -> None:
    message.discard(HUGE)


class RaisesAHugeError:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        raise ValueError(HUGE)


HUGE_TEXTS: list[Any] = [
    pytest.param(huge, {}, id="retried"),
    pytest.param(huge, {"max_attempts": 1}, id="dead-lettered"),
    pytest.param(discards_with_a_huge_reason, {}, id="discarded"),
    pytest.param(fails, {"on_failure": [RaisesAHugeError()], "backoff": None}, id="a step raises"),
    pytest.param(fails, {"retry_when": huge}, id="a hook raises"),
    pytest.param(huge, {"log": LogOptions(redact=lambda fields: fields)}, id="redacted"),
    pytest.param(fails, {"log": LogOptions(redact=lambda fields: {**fields, "more": HUGE})}, id="added"),
]


def plain(line: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(line)


@pytest.mark.parametrize(("handle", "settings"), HUGE_TEXTS)
def test_a_line_shows_at_most_4_kib_of_an_error_text(handle: Any, settings: Any, lines: TarryLines) -> None:  # SPEC I2
    run(handle, *batch_of(3)["Records"], **settings)
    assert len(lines.records) >= 3
    for line in lines.records:
        if not hasattr(line, "record"):
            assert plain(line).count("x") < 4_096 + 200
            assert sum(str(value).count("x") for value in vars(line).values()) < 2 * 4_096 + 400


def test_a_trimmed_failure_record_is_logged_up_to_64_kib(lines: TarryLines) -> None:  # SPEC F3, I2
    run(huge, max_attempts=1)
    [line] = lines.named("record_cut")
    assert len(json.dumps(line.record)) <= 65_536 + 1_000
    assert line.record["failure"]["type"] == "ValueError"


def awslambdaric_formatter() -> logging.Formatter:
    pytest.importorskip("awslambdaric")  # has wheels for Linux only
    from awslambdaric.lambda_runtime_log_utils import JsonFormatter

    formatter: logging.Formatter = JsonFormatter()
    return formatter


def powertools_formatter() -> logging.Formatter:
    from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

    return LambdaPowertoolsFormatter()


def local_formatter() -> logging.Formatter:
    from tarry.tools.local.functions.client import _Json

    return _Json()


@pytest.mark.parametrize("formatter", [awslambdaric_formatter, powertools_formatter, local_formatter])
def test_a_json_formatter_shows_the_traceback_once(
    formatter: Callable[[], logging.Formatter], lines: TarryLines
) -> None:  # SPEC L2
    run(fails)
    text = formatter().format(lines.records[0])
    assert text.count("Traceback (most recent call last)") == 1
    assert "in fails" in json.loads(text)["traceback"]


def test_the_traceback_contains_the_text_of_a_cause(lines: TarryLines) -> None:  # SPEC L2
    def handler(message: Message) -> None:
        try:
            fails(message)
        except ValueError as error:
            raise KeyError("order 7") from error

    run(handler)
    traceback = lines.records[0].traceback
    assert traceback.index("ValueError: no stock") < traceback.index("which led to") < traceback.index("order 7")


class CountsItsTexts(Exception):
    asked = 0

    def __str__(self) -> str:
        type(self).asked += 1
        return "no stock"


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_an_error_that_fails_a_whole_batch_is_converted_to_text_once(
    max_attempts: int, lines: TarryLines
) -> None:  # SPEC I2, B5
    @batch_consumer(max_attempts=max_attempts)
    def handler(batch: Batch) -> None:
        raise CountsItsTexts

    CountsItsTexts.asked = 0
    with orders():
        handler(batch_of(50), Context())
    assert CountsItsTexts.asked == 1
    assert len(lines.records) == 50
    assert all(line.error == f"{__name__}.CountsItsTexts: no stock" for line in lines.records)
