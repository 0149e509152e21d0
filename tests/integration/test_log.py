"""The log of a consumer: states, and one line for each transition except a plain commit."""

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
    Fixed,
    LogOptions,
    Message,
    Outcome,
    Retry,
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
        return "\n".join(f"{plain(line)} {line.__dict__}" for line in self.records)


def plain(line: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(line)


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


def raises(error: BaseException) -> Callable[[Any], None]:
    def handler(_: Any) -> None:
        raise error

    return handler


def run(handle: Callable[[Message], Any], *records: dict[str, Any], wire: Wire | None = None, **settings: Any) -> Any:
    with wire or orders():
        return consumer(**{"backoff": Fixed(60), **settings})(handle)(event(*records or (record(),)), Context())


def with_attribute(body: str = "{}", message_id: str = "m1", **fields: Any) -> dict[str, Any]:
    """Return a record with an attribute of tarry."""
    text = json.dumps({"v": 1, "sum": body_sum(body), **fields})
    return record(body, message_id, attributes={"Tarry": {"stringValue": text, "dataType": "String"}})


def test_the_states_have_the_names_of_their_values() -> None:  # SPEC L1
    names = "READY IN_FLIGHT WAITING_RETRY COMMITTED DEAD_LETTERED DISCARDED DEFERRED RESENT".split()
    assert [state.name for state in State] == [str(state) for state in State] == names


def test_a_plain_commit_is_not_logged(lines: TarryLines) -> None:  # SPEC L2
    run(lambda message: None, *batch_of(20)["Records"])
    run(lambda message: message.ack())
    assert lines.records == []


@pytest.mark.parametrize(
    ("handle", "settings", "name", "state", "level", "fields"),
    [
        (fails, {}, "waiting_retry", "WAITING_RETRY", "WARNING", {"delay": 60, "reason": "error"}),
        (lambda m: m.retry(9), {}, "waiting_retry", "WAITING_RETRY", "WARNING", {"delay": 9}),
        (raises(Retry(9)), {}, "waiting_retry", "WAITING_RETRY", "WARNING", {"delay": 9, "exc_text": None}),
        (fails, {"max_attempts": 1}, "dead_lettered", "DEAD_LETTERED", "ERROR", {"reason": "exhausted"}),
        (lambda m: m.reject("bad"), {}, "dead_lettered", "DEAD_LETTERED", "ERROR", {"reason": "rejected"}),
        (lambda m: m.discard("old"), {}, "discarded", "DISCARDED", "INFO", {"reason": "old"}),
        (lambda m: m.defer(9), {}, "deferred", "DEFERRED", "INFO", {"delay": 9}),
    ],
)
def test_each_other_transition_is_one_line_with_its_fields_and_the_body_on_request(
    handle: Any, settings: Any, name: str, state: str, level: str, fields: dict[str, Any], lines: TarryLines
) -> None:  # SPEC L2
    run(handle, record(SECRET), name="orders-consumer", **settings)
    [line] = lines.records
    assert (line.event, line.state, line.levelname) == (name, state, level)
    assert (line.message_id, line.delivery_id, line.queue, line.consumer) == ("m1", "m1", "orders", "orders-consumer")
    assert (line.attempt, line.max_attempts) == (1, settings.get("max_attempts", 5))
    assert {field: getattr(line, field) for field in fields} == fields
    assert SECRET not in lines.text()
    run(handle, record(SECRET), log=LogOptions(body=True), **settings)
    assert lines.records[1].body == SECRET


def test_a_failure_is_logged_with_its_error_and_one_traceback(lines: TarryLines) -> None:  # SPEC L2
    """The consumer has the name of its function by default."""
    run(fails)
    [line] = lines.records
    assert (line.error, line.error_type, line.consumer) == ("ValueError: no stock", "ValueError", "fails")
    assert len(line.fingerprint) == 12
    for part in ["waiting_retry", "message_id=m1", "queue=orders", "attempt=1", "delay=60", "no stock"]:
        assert part in line.getMessage()
    text = plain(line)
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count("ValueError: no stock") == 2  # in the sentence, and under the traceback
    assert "tarry/run/" not in text


def test_released_messages_are_logged_without_an_error(lines: TarryLines) -> None:  # SPEC L2, A5
    run(raises(SystemExit()), *batch_of(3)["Records"])
    assert [line.message_id for line in lines.named("waiting_retry")] == ["m0"]
    released = lines.named("released")
    assert [(line.message_id, line.state, line.levelname) for line in released] == [
        ("m1", "READY", "INFO"),
        ("m2", "READY", "INFO"),
    ]
    assert not any(hasattr(line, "error") for line in released)


@pytest.mark.parametrize(
    ("operation", "settings", "name", "field"),
    [
        ("ChangeMessageVisibilityBatch", {}, "waiting_retry", "not_settled"),
        ("SendMessageBatch", {"max_attempts": 1}, "unhandled", "not_sent"),
    ],
)
def test_a_settlement_that_failed_is_logged_with_its_message_and_error(
    operation: str, settings: Any, name: str, field: str, lines: TarryLines
) -> None:  # SPEC E4, F4, G1, L2
    run(fails, wire=orders(fails={operation: client_error("InternalError", "try later", 500)}), **settings)
    [line] = lines.named(name)
    assert (line.levelname, line.message_id) == ("WARNING" if name == "waiting_retry" else "ERROR", "m1")
    assert (line.error_type, hasattr(line, "delay")) == ("ValueError", name == "unhandled")
    assert "InternalError" in getattr(line, field)


def test_a_line_has_the_stable_id_the_delivery_id_and_the_dead_letter_queue(lines: TarryLines) -> None:  # SPEC L2, K3
    run(fails, with_attribute(id="stable", carried=2), on_failure=[DeadLetter(queue="graveyard")], backoff=None)
    [line] = lines.records
    assert (line.message_id, line.delivery_id, line.attempt) == ("stable", "m1", 3)
    assert line.dead_letter_queue == "graveyard"


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("handle", [fails, lambda message: message.retry()], ids=["an error", "the last retry"])
@pytest.mark.parametrize(
    ("step", "name"), [(DropMessage(), "discarded"), (lambda failure, next_step: Outcome.ack(), "committed")]
)
def test_a_failure_that_a_step_drops_or_acknowledges_is_logged_as_a_warning(
    step: Any, name: str, handle: Any, queue: str, lines: TarryLines
) -> None:  # SPEC L2
    run(handle, record(queue=queue), on_failure=[step], backoff=None, max_attempts=1)
    [line] = lines.records
    assert (line.event, line.levelname) == (name, "WARNING")


@pytest.mark.parametrize("error", [ValueError("no stock"), SystemExit(2), KeyboardInterrupt()], ids=repr)
def test_the_exception_of_a_dead_letter_or_of_the_end_of_a_batch_is_logged_once(
    error: BaseException, lines: TarryLines
) -> None:  # SPEC L2, A5
    run(raises(error), *batch_of(1 if isinstance(error, ValueError) else 3)["Records"], max_attempts=1)
    assert sum(line.exc_text is not None for line in lines.records) == 1


def test_an_exception_after_the_verdict_is_logged_but_ignored(lines: TarryLines) -> None:  # SPEC B5, L2
    def handler(message: Message) -> None:
        message.ack()
        raise ValueError("too late")

    @batch_consumer
    def batch_handler(batch: Batch) -> None:
        batch.ack_all()
        raise ValueError("too late, too")

    assert failed(run(handler)) == []
    [line] = lines.records
    assert "too late" in line.error
    with orders():
        assert failed(batch_handler(batch_of(3), Context())) == []
    assert "too late, too" in lines.text()


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
def test_an_error_that_fails_a_whole_batch_is_converted_to_text_once_for_all_lines(
    max_attempts: int, lines: TarryLines
) -> None:  # SPEC I2, B5, L2
    CountsItsTexts.asked = 0
    with orders():
        batch_consumer(max_attempts=max_attempts)(raises(CountsItsTexts()))(batch_of(50), Context())
    assert CountsItsTexts.asked == 1
    assert sorted(line.message_id for line in lines.records) == sorted(f"m{index}" for index in range(50))
    assert all(line.error == f"{__name__}.CountsItsTexts: no stock" for line in lines.records)


def test_bodies_and_attributes_are_not_logged_when_tarry_itself_has_problems(lines: TarryLines) -> None:  # SPEC L2
    denied = client_error("AccessDenied", status=403)
    wire = orders(fails={"GetQueueAttributes": denied, "ChangeMessageVisibilityBatch": denied})
    attributes = {"card": {"stringValue": SECRET, "dataType": "String"}}
    steps = [lambda failure, next_step: {}["of the step"]]
    run(fails, record(SECRET, attributes=attributes), wire=wire, on_failure=steps, backoff=None)
    assert lines.records
    assert SECRET not in lines.text()


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
    {"Type": "Notification", "TopicArn": "t", "Message": SECRET},
]


@pytest.mark.parametrize("max_attempts", [1, 5])
@pytest.mark.parametrize(
    ("handle", "settings"),
    [
        pytest.param(lambda message: message.json()[0]["number"], {}, id="message.json()"),
        pytest.param(lambda message: json.loads(message.body)[0]["number"], {}, id="json.loads"),
        pytest.param(lambda message: message.json(), {"model": Order}, id="model"),
        pytest.param(lambda message: message.json(), {"model": Order, "envelope": "sns"}, id="model in SNS"),
        pytest.param(validates_itself, {}, id="own validation"),
        pytest.param(raises_from_its_validation, {}, id="own validation as a cause"),
        pytest.param(raises_a_group, {}, id="own validation in a group"),
        pytest.param(lambda message: TypeAdapter(dict[int, int]).validate_json(message.body), {}, id="type adapter"),
    ],
)
def test_no_body_is_in_the_line_of_a_message_that_cannot_be_read(
    handle: Any, settings: Any, max_attempts: int, lines: TarryLines, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L2, D4
    logging.getLogger("tarry").setLevel(logging.DEBUG)
    records = [record(body, f"m{index}") for index, body in enumerate(SECRET_BODIES)]
    run(handle, *records, max_attempts=max_attempts, **settings)
    assert len(lines.records) >= 6  # a body is not invalid for every reader
    assert SECRET not in lines.text() + "".join(capsys.readouterr())


def test_a_validation_error_of_the_handler_names_the_fields_of_its_model(lines: TarryLines) -> None:
    run(validates_itself, record({"lines": {SECRET: {"number": "x"}}}))
    assert lines.records[0].error == (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Order: number: Field required; "
        "lines.<key>.number: Input should be a valid integer, unable to parse string as an integer"
    )


def _mask(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.replace(SECRET, "****") if isinstance(value, str) else value for name, value in fields.items()}


def _gives_two_verdicts(message: Message) -> None:
    message.reject(f"card {SECRET}")
    message.fail(ValueError(SECRET))


def _raises_after_ack(message: Message) -> None:
    message.ack()
    raise ValueError(f"card {SECRET} declined")


_raises_with_a_secret = raises(ValueError(f"card {SECRET} declined"))


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
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
    handle: Any, settings: Any, level: int, lines: TarryLines
) -> None:  # SPEC L2, F3
    """Without it, the text of an exception, which is the user's, is in the line."""
    logging.getLogger("tarry").setLevel(level)
    run(handle, record(SECRET), log=LogOptions(body=True, redact=_mask), **settings)
    assert lines.records
    assert SECRET not in lines.text()
    run(handle, record("{}"), **settings)
    assert SECRET in lines.text()


def test_redact_gets_the_traceback_as_a_field(lines: TarryLines) -> None:  # SPEC L2
    seen: list[dict[str, Any]] = []
    run(fails, log=LogOptions(redact=lambda fields: seen.append(fields) or fields))  # type: ignore[func-returns-value]
    assert "in fails" in seen[0]["traceback"]
    assert "no stock" not in lines.records[0].exc_text.splitlines()[-1]


def _clears_and_raises(fields: dict[str, Any]) -> Any:
    fields.clear()
    raise KeyError


def _recurses(fields: Any) -> Any:
    return _recurses(fields)


FAILING: list[Any] = [
    *(raises(error) for error in (KeyError(SECRET), SystemExit(SECRET))),
    *(lambda _: 7, lambda _: [SECRET], _clears_and_raises, _recurses),
]


def _uses_reserved_names(fields: dict[str, Any]) -> Any:
    return {**fields, "message": "x", "args": "y", "exc_info": "z"}


@pytest.mark.parametrize("redact", [*FAILING, lambda _: {}, _uses_reserved_names])
def test_a_failing_redact_does_not_affect_settlement_and_the_line_is_written_without_secrets(
    redact: Any, lines: TarryLines, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L2, A2, I7
    """It keeps what tarry itself says."""
    wire = orders()
    response = run(_raises_with_a_secret, record(SECRET), wire=wire, log=LogOptions(body=True, redact=redact))
    assert failed(response) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    [line] = lines.records
    if redact is not _uses_reserved_names:
        assert SECRET not in lines.text() + capsys.readouterr().err
    if redact in FAILING:
        assert (line.event, line.message_id, line.queue) == ("waiting_retry", "m1", "orders")
        assert (line.state, line.attempt, line.delay, line.error_type) == ("WAITING_RETRY", 1, 60, "ValueError")
        assert not hasattr(line, "error")
        assert "redact" in line.getMessage()


FORGED = "x\nERROR dead_lettered message_id=m2"


def _one_line(text: str) -> bool:
    return len(text.splitlines()) == 1 and text.isprintable()


@pytest.mark.parametrize(
    "text",
    [FORGED, "x\r\nERROR forged", "x\x1b[2K\x1b[1Aforged", "x\u2028ERROR forged", "x\x85forged", "a=b c=d", "\udcff"],
    ids=ascii,
)
def test_hostile_text_cannot_forge_a_line(text: str, lines: TarryLines) -> None:  # SPEC L2
    def handler(message: Message) -> None:
        match message.body:
            case "discard":
                message.discard(text)
            case "reject":
                message.reject(text)
            case "two verdicts":
                message.ack()
                message.reject()
            case _:
                raise ValueError(text)

    damaged = {"Tarry": {"stringValue": json.dumps({"v": text, "sum": text}), "dataType": "String"}}
    odd = record("fail", "m5")
    odd["messageId"] += text
    odd["eventSourceARN"] += text
    logging.getLogger("tarry").setLevel(logging.DEBUG)
    run(
        handler,
        record("discard", "m1"),
        record("reject", "m2"),
        with_attribute("fail", "m3", id=text),
        record("fail", "m4", attributes=damaged),
        odd,
        with_attribute("two verdicts", "m6", id=text),
        log=LogOptions(body=True),
    )
    assert {line.delivery_id[:2] for line in lines.records if hasattr(line, "delivery_id")} == {
        f"m{number}" for number in range(1, 7)
    }
    for line in lines.records:
        assert _one_line(line.getMessage())


def test_a_line_that_cannot_be_logged_is_one_line_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A2, L2
    monkeypatch.setattr(logging.getLogger("tarry"), "filters", [raises(OSError("full"))])
    assert failed(run(fails, with_attribute(id=FORGED))) == ["m1"]
    [text] = capsys.readouterr().err.splitlines()
    assert "waiting_retry" in text
    assert "m2" in text


def test_a_logger_with_a_higher_level_gets_no_lines(lines: TarryLines) -> None:  # SPEC L2
    logging.getLogger("tarry").setLevel(logging.CRITICAL)
    assert (failed(run(fails)), lines.records) == (["m1"], [])


HUGE = "x" * 5_000_000


def huge(message: Message) -> None:
    try:
        raise KeyError(HUGE)
    except KeyError as error:
        raise ValueError(HUGE) from error


@pytest.mark.parametrize(
    ("handle", "settings"),
    [
        pytest.param(huge, {}, id="retried"),
        pytest.param(huge, {"max_attempts": 1}, id="dead-lettered"),
        pytest.param(lambda message: message.discard(HUGE), {}, id="discarded"),
        pytest.param(
            fails, {"on_failure": [lambda failure, next_step: huge(failure)], "backoff": None}, id="a step raises"
        ),
        pytest.param(fails, {"retry_when": huge}, id="a hook raises"),
        pytest.param(huge, {"log": LogOptions(redact=lambda fields: fields)}, id="redacted"),
        pytest.param(fails, {"log": LogOptions(redact=lambda fields: {**fields, "more": HUGE})}, id="added"),
    ],
)
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


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("awslambdaric.lambda_runtime_log_utils", "JsonFormatter"),  # has wheels for Linux only
        ("aws_lambda_powertools.logging.formatter", "LambdaPowertoolsFormatter"),
        ("tarry.tools.local.functions.client", "_Json"),
    ],
)
def test_a_json_formatter_shows_the_traceback_once_and_that_of_powertools_the_fields(
    module: str, name: str, lines: TarryLines
) -> None:  # SPEC L2
    formatter: logging.Formatter = getattr(pytest.importorskip(module), name)()
    run(fails)
    text = formatter.format(lines.records[0])
    assert text.count("Traceback (most recent call last)") == 1
    shown = json.loads(text)
    assert "in fails" in shown["traceback"]
    if name == "LambdaPowertoolsFormatter":
        assert (shown["event"], shown["message_id"], shown["delay"]) == ("waiting_retry", "m1", 60)
        assert shown["error_type"] == "ValueError"
