"""The log of a consumer: states, and one line for each transition except a plain commit."""

import json
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tarry import (
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
from tests.loglines import Caplog, everything, lines
from tests.records import batch_of, event, record
from tests.settled import orders, settle, tarry_attribute
from tests.wire import Wire, client_error

SECRET = "4111-1111-1111-1111"


@pytest.fixture(autouse=True)
def _info(caplog: Caplog) -> None:
    caplog.set_level(logging.INFO, "tarry")


def plain(line: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(line)


def fails(message: Message) -> None:
    raise ValueError("no stock")


def raises(error: BaseException) -> Callable[[Any], None]:
    def handler(_: Any) -> None:
        raise error

    return handler


def run(handle: Any, *records: dict[str, Any], wire: Wire | None = None, make: Any = consumer, **settings: Any) -> Any:
    """Run the handler for the messages, or for one; return the ids of those that it reports."""
    handler = make(**{"backoff": Fixed(60), **settings})(handle)
    return settle(handler, event(*records or (record(),)), wire)[0]


def many(count: int) -> list[dict[str, Any]]:
    return batch_of(count)["Records"]  # type: ignore[no-any-return]


def only(caplog: Caplog, name: str | None = None) -> Any:
    [line] = lines(caplog, name)
    return line


# the lines


def test_the_states_have_the_names_of_their_values_and_a_plain_commit_is_not_logged(caplog: Caplog) -> None:
    """SPEC L1, L2."""
    names = "READY IN_FLIGHT WAITING_RETRY COMMITTED DEAD_LETTERED DISCARDED DEFERRED RESENT".split()
    assert [state.name for state in State] == [str(state) for state in State] == names
    run(lambda message: None, *many(20))
    run(lambda message: message.ack())
    assert lines(caplog) == []


WAITS, DEAD = ("waiting_retry", "WAITING_RETRY", "WARNING"), ("dead_lettered", "DEAD_LETTERED", "ERROR")


@pytest.mark.parametrize(
    ("handle", "settings", "expected", "fields"),
    [
        (fails, {}, WAITS, {"delay": 60, "reason": "error"}),
        (lambda m: m.retry(9), {}, WAITS, {"delay": 9}),
        (raises(Retry(9)), {}, WAITS, {"delay": 9, "exc_text": None}),
        (fails, {"max_attempts": 1}, DEAD, {"reason": "exhausted", "dead_letter_queue": "orders-dlq"}),
        (lambda m: m.reject("bad"), {}, DEAD, {"reason": "rejected"}),
        (lambda m: m.discard("old"), {}, ("discarded", "DISCARDED", "INFO"), {"reason": "old"}),
        (lambda m: m.defer(9), {}, ("deferred", "DEFERRED", "INFO"), {"delay": 9}),
    ],
)
def test_each_other_transition_is_one_line_with_its_fields_and_the_body_on_request(
    handle: Any, settings: Any, expected: tuple[str, str, str], fields: dict[str, Any], caplog: Caplog
) -> None:  # SPEC B2, L2
    run(handle, record(SECRET), name="orders-consumer", **settings)
    line = only(caplog)
    assert (line.event, line.state, line.levelname) == expected
    assert (line.message_id, line.delivery_id, line.queue, line.consumer) == ("m1", "m1", "orders", "orders-consumer")
    assert (line.attempt, line.max_attempts) == (1, settings.get("max_attempts", 5))
    assert {field: getattr(line, field) for field in fields} == fields
    assert SECRET not in everything(caplog)
    run(handle, record(SECRET), log=LogOptions(body=True), **settings)
    assert caplog.records[1].body == SECRET


def test_a_failure_is_logged_with_its_error_and_one_traceback(caplog: Caplog) -> None:  # SPEC L2
    """The consumer has the name of its function by default."""
    run(fails)
    line = only(caplog)
    assert (line.error, line.error_type, line.consumer) == ("ValueError: no stock", "ValueError", "fails")
    assert len(line.fingerprint) == 12
    shown = "queue=orders attempt=1 max_attempts=5 delay=60 reason=error error='ValueError: no stock' fingerprint="
    assert line.getMessage() == f"waiting_retry message_id=m1 {shown}{line.fingerprint}"
    run(fails, record(attributes=tarry_attribute(id="stable")))
    of_copy = lines(caplog)[-1].getMessage()
    assert of_copy == f"waiting_retry message_id=stable delivery_id=m1 {shown}{line.fingerprint}"
    text = plain(line)
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count("ValueError: no stock") == 2  # in the sentence, and under the traceback
    assert "tarry/run/" not in text


@pytest.mark.parametrize("error", [ValueError("no stock"), SystemExit(2), KeyboardInterrupt()], ids=repr)
def test_an_exception_is_logged_once_and_released_messages_without_it(error: BaseException, caplog: Caplog) -> None:
    """SPEC L2, A5."""
    ends = not isinstance(error, Exception)
    run(raises(error), *many(3 if ends else 1))
    run(raises(error), *many(3 if ends else 1), max_attempts=1)
    assert sum(line.exc_text is not None for line in lines(caplog)) == 2
    assert [line.message_id for line in lines(caplog, "waiting_retry")] == ["m0"]
    released: list[Any] = lines(caplog, "released")
    of_released = [(name, "READY", "INFO", False) for name in ("m1", "m2") * 2 if ends]
    assert [(line.message_id, line.state, line.levelname, hasattr(line, "error")) for line in released] == of_released


@pytest.mark.parametrize(
    ("operation", "settings", "name", "field"),
    [
        ("ChangeMessageVisibilityBatch", {}, "waiting_retry", "not_settled"),
        ("SendMessageBatch", {"max_attempts": 1}, "unhandled", "not_sent"),
    ],
)
def test_a_settlement_that_failed_is_logged_with_its_message_and_error(
    operation: str, settings: Any, name: str, field: str, caplog: Caplog
) -> None:  # SPEC E4, F4, G1, L2
    wire = orders()
    wire.fails[operation] = client_error("InternalError", "try later", 500)
    run(fails, wire=wire, **settings)
    line = only(caplog, name)
    assert (line.levelname, line.message_id) == ("WARNING" if name == "waiting_retry" else "ERROR", "m1")
    assert (line.error_type, hasattr(line, "delay")) == ("ValueError", name == "unhandled")
    assert "InternalError" in getattr(line, field)


def test_a_release_and_a_deferral_that_sqs_did_not_carry_out_are_warnings(caplog: Caplog) -> None:  # SPEC L2
    for operation, handle, level in (
        ("ChangeMessageVisibilityBatch", raises(SystemExit()), "WARNING"),
        ("SendMessageBatch", lambda message: message.defer(9), "WARNING"),
        ("GetQueueUrl", lambda message: message.defer(9), "INFO"),  # which is not asked for
    ):
        caplog.clear()
        wire = orders()
        wire.fails[operation] = client_error("InternalError", "try later", 500)
        run(handle, *many(2), wire=wire)
        assert lines(caplog)[-1].levelname == level


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("handle", [fails, lambda message: message.retry()], ids=["an error", "the last retry"])
@pytest.mark.parametrize(
    ("step", "name"), [(DropMessage(), "discarded"), (lambda failure, next_step: Outcome.ack(), "committed")]
)
def test_a_failure_that_a_step_drops_or_acknowledges_is_logged_as_a_warning(
    step: Any, name: str, handle: Any, queue: str, caplog: Caplog
) -> None:  # SPEC L2
    run(handle, record(queue=queue), on_failure=[step], backoff=None, max_attempts=1)
    assert (only(caplog).event, only(caplog).levelname) == (name, "WARNING")


def test_an_exception_after_the_verdict_is_logged_but_ignored(caplog: Caplog) -> None:  # SPEC B5, L2
    assert run(lambda message: message.ack() or fails(message)) == []
    assert "no stock" in only(caplog).error
    assert run(lambda batch: batch.ack_all() or 1 / 0, *many(3), make=batch_consumer) == []
    assert "ZeroDivisionError" in everything(caplog)


class CountsItsTexts(Exception):
    asked = 0

    def __str__(self) -> str:
        type(self).asked += 1
        return "no stock"


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_an_error_that_fails_a_whole_batch_is_converted_to_text_once_for_all_lines(
    max_attempts: int, caplog: Caplog
) -> None:  # SPEC I2, B5, L2
    CountsItsTexts.asked = 0
    run(raises(CountsItsTexts()), *many(50), make=batch_consumer, max_attempts=max_attempts)
    assert CountsItsTexts.asked == 1
    assert sorted(line.message_id for line in caplog.records) == sorted(f"m{index}" for index in range(50))
    assert {line.error for line in caplog.records} == {f"{__name__}.CountsItsTexts: no stock"}


# bodies


def test_bodies_and_attributes_are_not_logged_when_tarry_itself_has_problems(caplog: Caplog) -> None:  # SPEC L2
    wire = orders()
    wire.fails |= dict.fromkeys(
        ("GetQueueAttributes", "ChangeMessageVisibilityBatch"), client_error("AccessDenied", status=403)
    )
    attributes = {"card": {"stringValue": SECRET, "dataType": "String"}}
    steps = [lambda failure, next_step: {}["of the step"]]
    run(fails, record(SECRET, attributes=attributes), wire=wire, on_failure=steps, backoff=None)
    assert lines(caplog)
    assert SECRET not in everything(caplog)


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
    handle: Any, settings: Any, caplog: Caplog, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L2, D4
    caplog.set_level(logging.DEBUG, "tarry")
    records = [record(body, f"m{index}") for index, body in enumerate(SECRET_BODIES)]
    for max_attempts in (1, 5):
        run(handle, *records, max_attempts=max_attempts, **settings)
    assert len(lines(caplog)) >= 12  # a body is not invalid for every reader
    assert SECRET not in everything(caplog) + "".join(capsys.readouterr())


def test_a_validation_error_of_the_handler_names_the_fields_of_its_model(caplog: Caplog) -> None:
    run(validates_itself, record({"lines": {SECRET: {"number": "x"}}}))
    assert only(caplog).error == (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Order: number: Field required; "
        "lines.<key>.number: Input should be a valid integer, unable to parse string as an integer"
    )


# redact


def _mask(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.replace(SECRET, "****") if isinstance(value, str) else value for name, value in fields.items()}


raises_a_secret = raises(ValueError(f"card {SECRET} declined"))


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
@pytest.mark.parametrize(
    ("handle", "settings"),
    [
        pytest.param(raises_a_secret, {}, id="retried"),
        pytest.param(raises_a_secret, {"max_attempts": 1}, id="dead-lettered"),
        pytest.param(raises_a_secret, {"on_failure": [RetryInPlace()], "max_attempts": 1}, id="unhandled"),
        pytest.param(lambda m: m.discard(SECRET), {}, id="discarded"),
        pytest.param(lambda m: m.reject(SECRET), {}, id="rejected"),
        pytest.param(lambda m: m.ack() or raises_a_secret(m), {}, id="raised after a verdict"),
        pytest.param(lambda m: m.reject(SECRET) or m.fail(ValueError(SECRET)), {}, id="two verdicts"),
    ],
)
def test_redact_is_applied_to_every_line_before_it_is_written(
    handle: Any, settings: Any, level: int, caplog: Caplog
) -> None:  # SPEC L2, F3
    """Without it, the text of an exception, which is the user's, is in the line."""
    caplog.set_level(level, "tarry")
    run(handle, record(SECRET), log=LogOptions(body=True, redact=_mask), **settings)
    assert lines(caplog)
    assert SECRET not in everything(caplog)
    run(handle, record("{}"), **settings)
    assert SECRET in everything(caplog)


def test_redact_gets_the_traceback_as_a_field(caplog: Caplog) -> None:  # SPEC L2
    seen: list[dict[str, Any]] = []
    run(fails, log=LogOptions(redact=lambda fields: seen.append(fields) or fields))  # type: ignore[func-returns-value]
    assert "in fails" in seen[0]["traceback"]
    assert "no stock" not in only(caplog).exc_text.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("text", "x" * 1_024, 1_024),
        ("text", "x" * 1_030, 1_024),
        ("text", "\U0001f600" * 256, 1_024),
        ("text", "\U0001f600" * 257, 4 * 255 + len("...")),
        ("traceback", "x" * 16_400, 16_384),
        ("record", "x" * 70_000, 65_536),
        ("body", "x" * 70_000, 70_000),
    ],
    ids=str,
)
def test_a_text_is_cut_to_the_bytes_that_its_field_may_have(name: str, text: str, shown: int, caplog: Caplog) -> None:
    # SPEC I2, F3
    run(fails, log=LogOptions(redact=lambda fields: {**fields, name: text}))
    assert len(getattr(only(caplog), name).encode()) == shown
    assert name != "traceback" or only(caplog).exc_text == only(caplog).traceback


def _clears_and_raises(fields: dict[str, Any]) -> Any:
    fields.clear()
    raise KeyError


def _recurses(fields: Any) -> Any:
    return _recurses(fields)


def _uses_reserved_names(fields: dict[str, Any]) -> Any:
    return {**fields, "message": "x", "args": "y", "exc_info": "z"}


FAILING: list[Any] = [
    *(raises(KeyError(SECRET)), raises(SystemExit(SECRET)), lambda _: 7, lambda _: [SECRET]),
    *(_clears_and_raises, _recurses),
]


@pytest.mark.parametrize("redact", [*FAILING, lambda _: {}, _uses_reserved_names])
def test_a_failing_redact_does_not_affect_settlement_and_the_line_is_written_without_secrets(
    redact: Any, caplog: Caplog, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L2, A2, I7
    """It keeps what tarry itself says."""
    wire = orders()
    assert run(raises_a_secret, record(SECRET), wire=wire, log=LogOptions(body=True, redact=redact)) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    line = only(caplog)
    if redact is not _uses_reserved_names:
        assert SECRET not in everything(caplog) + capsys.readouterr().err
    if redact in FAILING:
        assert (line.event, line.message_id, line.queue) == ("waiting_retry", "m1", "orders")
        assert (line.state, line.attempt, line.delay, line.error_type) == ("WAITING_RETRY", 1, 60, "ValueError")
        assert (hasattr(line, "error"), "redact" in line.getMessage()) == (False, True)


# what lines look like


FORGED = "x\nERROR dead_lettered message_id=m2"


@pytest.mark.parametrize(
    "text",
    [FORGED, "x\r\nERROR forged", "x\x1b[2K\x1b[1Aforged", "x\u2028ERROR forged", "x\x85forged", "a=b c=d", "\udcff"],
    ids=ascii,
)
def test_hostile_text_cannot_forge_a_line(text: str, caplog: Caplog) -> None:  # SPEC L2
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
    caplog.set_level(logging.DEBUG, "tarry")
    run(
        handler,
        record("discard", "m1"),
        record("reject", "m2"),
        record("fail", "m3", attributes=tarry_attribute("fail", id=text)),
        record("fail", "m4", attributes=damaged),
        odd,
        record("two verdicts", "m6", attributes=tarry_attribute("two verdicts", id=text)),
        log=LogOptions(body=True),
    )
    shown = [line.getMessage() for line in lines(caplog)]
    assert [text for text in shown if len(text.splitlines()) > 1 or not text.isprintable()] == []
    ids = {line.delivery_id[:2] for line in caplog.records if hasattr(line, "delivery_id")}
    assert ids == {f"m{number}" for number in range(1, 7)}


def test_a_line_that_cannot_be_logged_is_one_line_on_stderr_and_a_logger_of_a_higher_level_gets_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC A2, L2
    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger("tarry"), "filters", [raises(OSError("full"))])
        assert run(fails, record(attributes=tarry_attribute(id=FORGED))) == ["m1"]
    [text] = capsys.readouterr().err.splitlines()
    assert ("waiting_retry" in text, "m2" in text) == (True, True)
    caplog.set_level(logging.CRITICAL, "tarry")
    assert (run(fails), lines(caplog)) == (["m1"], [])


HUGE = "x" * 1_100_000


def huge(_: object) -> None:
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
        pytest.param(fails, {"on_failure": [lambda failure, _: huge(failure)], "backoff": None}, id="a step raises"),
        pytest.param(fails, {"retry_when": huge}, id="a hook raises"),
        pytest.param(huge, {"log": LogOptions(redact=lambda fields: fields)}, id="redacted"),
    ],
)
def test_a_line_shows_at_most_4_kib_of_an_error_text(handle: Any, settings: Any, caplog: Caplog) -> None:  # SPEC I2
    """But the line of a failure record that was trimmed."""
    run(handle, *many(3), **settings)
    assert len(lines(caplog)) >= 3
    for line in caplog.records:
        if hasattr(line, "record"):
            assert len(json.dumps(line.record)) <= 65_536 + 1_000  # SPEC F3
            assert (line.event, line.record["failure"]["type"]) == ("record_cut", "ValueError")
        else:
            assert plain(line).count("x") < 4_096 + 200
            shown = [str(value).count("x") for name, value in vars(line).items() if name != "message"]
            assert sum(shown) < 2 * 4_096 + 400
    cut = ["record_cut"] * 3 if settings == {"max_attempts": 1} else []
    assert [line.event for line in caplog.records if hasattr(line, "record")] == cut


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("awslambdaric.lambda_runtime_log_utils", "JsonFormatter"),  # has wheels for Linux only
        ("aws_lambda_powertools.logging.formatter", "LambdaPowertoolsFormatter"),
        ("tarry.tools.local.functions.client", "_Json"),
    ],
)
def test_a_json_formatter_shows_the_traceback_once_and_that_of_powertools_the_fields(
    module: str, name: str, caplog: Caplog
) -> None:  # SPEC L2
    formatter: logging.Formatter = getattr(pytest.importorskip(module), name)()
    run(fails)
    text = formatter.format(only(caplog))
    assert text.count("Traceback (most recent call last)") == 1
    shown = json.loads(text)
    assert "in fails" in shown["traceback"]
    if name == "LambdaPowertoolsFormatter":
        assert (shown["event"], shown["message_id"], shown["delay"]) == ("waiting_retry", "m1", 60)
        assert shown["error_type"] == "ValueError"
