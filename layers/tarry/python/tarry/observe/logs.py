"""Structured log lines on the logger ``tarry``, for problems and for all transitions except a plain commit.

The text of a line contains its fields. They are also attributes of the log record (``extra``), so that Lambda's JSON
format, Powertools and other structured formatters show them as fields. Bodies are logged only if `LogOptions` says so.
"""

from __future__ import annotations

from tarry.support.guards import drop_tracebacks, is_a, name_of, text_of
from tarry.support.values import DEBUG, ERROR, INFO, WARNING, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from tarry.message.delivery import Delivery, Failure
    from tarry.message.diagnosis import Diagnosis
    from tarry.message.outcomes import Outcome
    from tarry.support.values import Notice
    from tarry.world import World

    Fields = Mapping[str, Any]


_TRANSITIONS = {
    "ack": ("committed", INFO),
    "retry": ("waiting_retry", WARNING),
    "resend": ("resent", WARNING),
    "dead_letter": ("dead_lettered", ERROR),
    "discard": ("discarded", INFO),
    "defer": ("deferred", INFO),
    "wait": ("deferred", INFO),
    "release": ("released", INFO),
    "unhandled": ("unhandled", ERROR),
}

KEPT = (
    "event", "state", "consumer", "message_id", "delivery_id", "queue", "attempt", "max_attempts", "delay", "reason",
    "error_type", "asked_for", "sent_to", "dead_letter_queue",
)  # fmt: skip
"""The fields of a line whose ``redact`` raised."""
REFUSED = frozenset({"not_sent", "not_settled"})
"""The fields that say why SQS did not carry an outcome out. They may quote an error: of a line whose ``redact`` raised,
only their names are shown."""


class LogOptions(Value):
    """The options of a consumer's log.

    Args:
        body: Whether lines about a message have its body.
        redact: A function that changes the fields of every line before it is written. Tracebacks then contain no error
            texts. If it raises, the line has only its event, ids, state, counts, reason and the error's type.
    """

    body: bool
    redact: Callable[[dict[str, Any]], Fields] | None

    def __init__(self, *, body: bool = False, redact: Callable[[dict[str, Any]], Fields] | None = None) -> None:
        self._freeze(body=body, redact=redact)


class Log:
    def __init__(self, consumer: str, options: LogOptions) -> None:
        self._consumer = consumer
        self._options = options

    @property
    def redacts(self) -> bool:
        """Whether texts of errors may only be shown after ``redact``."""
        return self._options.redact is not None

    def transition(
        self,
        delivery: Delivery,
        outcome: Outcome,
        *,
        error: BaseException | Diagnosis | None = None,
        delay: int | None = None,
        reason: str | None = None,
        failed: bool = False,
        failure: Failure | None = None,
        **more: Any,
    ) -> None:
        """Log that a message has moved to the state of its outcome; ``delay`` is None if it could not be set."""
        fields = {"state": str(outcome.state), "delay": delay, "reason": reason, **more}
        event, level = _TRANSITIONS[outcome.kind]
        if (observer := delivery.invocation.observer) is not None:
            observer.transition(delivery.delivery_id, outcome, delay, reason, failure, more)
        if failed or not REFUSED.isdisjoint(more):
            level = max(level, WARNING)
        self._message_line(level, event, delivery, error, fields)

    def problem(
        self,
        event: str,
        text: str,
        delivery: Delivery | None = None,
        *,
        error: BaseException | Diagnosis | None = None,
        level: int = ERROR,
        **more: Any,
    ) -> None:
        """Log a problem; ``text`` says what happened, what tarry does now, and what to do."""
        fields = {"text": text, **more}
        if delivery is None:
            self._line(level, {"event": event, "consumer": self._consumer, **fields}, error)
        else:
            self._message_line(level, event, delivery, error, fields)

    def notices(self, delivery: Delivery, notices: Iterable[Notice]) -> None:
        for notice in notices:
            more = notice.more or {}
            self.problem(notice.event, notice.text, delivery, error=notice.error, level=notice.level, **more)
            if is_a(notice.error, BaseException):
                drop_tracebacks(notice.error)  # its frames hold the notices

    def ignored(self, delivery: Delivery, verdict: str, why: str) -> None:
        text = f"{verdict} is ignored: {why}"
        self._message_line(DEBUG, "ignored", delivery, None, {"text": text})

    def once(self, world: World, event: str, text: str) -> None:
        """Log a warning once per cold start."""
        if world.first_time(f"{event} {text}"):
            self.problem(event, text, level=WARNING)

    def _message_line(
        self, level: int, event: str, delivery: Delivery, error: BaseException | Diagnosis | None, fields: Fields
    ) -> None:
        line = {
            "event": event,
            "consumer": self._consumer,
            "message_id": delivery.id,
            "delivery_id": delivery.delivery_id,
            "queue": delivery.queue,
            "attempt": delivery.attempt,
            "max_attempts": delivery.max_attempts,
            **fields,
        }
        if self._options.body:
            line["body"] = delivery.body
        self._line(level, line, error, delivery)

    def _line(
        self,
        level: int,
        fields: dict[str, Any],
        error: BaseException | Diagnosis | None,
        delivery: Delivery | None = None,
    ) -> None:
        """Write a line. An exception of a log handler, a formatter or ``redact`` does not affect the messages."""
        try:
            self._write(level, {name: value for name, value in fields.items() if value is not None}, error, delivery)
        except BaseException as failure:  # noqa: BLE001 a log handler or formatter of the user's
            _last_resort(fields, failure)

    def _write(
        self, level: int, fields: dict[str, Any], error: BaseException | Diagnosis | None, delivery: Delivery | None
    ) -> None:
        import logging

        logger = logging.getLogger("tarry")
        if not logger.isEnabledFor(level):
            return
        if error is not None:
            fields |= self._error_fields(error, delivery)
        if self._options.redact is not None:
            fields = self._redacted(self._options.redact, fields)
        fields = {
            name: _bounded(name, value) if type(value) is str and len(value) > _SURELY_SHORT else value
            for name, value in fields.items()
        }
        # The traceback is bounded text, not exc_info: the frames of a failed handler may be freed by now. Plain
        # formatters show exc_text; JSON formatters show the field.
        line = logger.makeRecord(
            logger.name, level, __file__, _LINE, _sentence(fields), (), None, "_write", _safe_names(fields)
        )
        if isinstance(traceback := fields.get("traceback"), str):
            line.exc_text = traceback
        logger.handle(line)

    def _error_fields(self, error: BaseException | Diagnosis, delivery: Delivery | None) -> dict[str, Any]:
        """Return the fields of an error. With a ``redact`` hook, the traceback contains no texts."""
        from tarry.message.diagnosis import Diagnoses

        diagnoses = Diagnoses() if delivery is None else delivery.invocation.diagnoses
        diagnosis: Any = diagnoses.of(error) if is_a(error, BaseException) else error
        fields = {"error": diagnosis.logged_line, "error_type": diagnosis.type, "fingerprint": diagnosis.fingerprint}
        traceback = diagnosis.logged_traceback if self._options.redact is None else diagnosis.traceback
        return {**fields, "traceback": traceback} if traceback else fields

    def _redacted(self, redact: Callable[[dict[str, Any]], Fields], fields: dict[str, Any]) -> dict[str, Any]:
        from tarry.support.hooks import call

        try:
            return call("redact", lambda: dict(redact(dict(fields))))
        except BaseException as failure:  # noqa: BLE001 a hook of the user's
            left_out = f"redact raised {name_of(type(failure))}"
            kept = {name: fields[name] for name in KEPT if name in fields}
            withheld = dict.fromkeys(REFUSED.intersection(fields), left_out)
            return kept | withheld | {"text": f"the other fields are left out: {left_out}"}


_LINE = Log._write.__code__.co_firstlineno  # of all log records


def _sentence(fields: Fields) -> str:
    """Return the text of a line with its fields: ``waiting_retry message_id=... attempt=2 delay=90``."""
    is_copy = fields.get("delivery_id") != fields.get("message_id")
    shown = [
        f"{name}={_shown(value)}"
        for name, value in fields.items()
        if name not in _NOT_SHOWN and (is_copy or name != "delivery_id")
    ]
    return " ".join([str(fields.get("event", "")), *shown])


MAX_FIELD_BYTES = 1_024
"""The most bytes of a field. An error's text is in up to three fields, together at most 4 KiB (SPEC I2)."""
MAX_RECORD_BYTES = 65_536  # of a failure record that was cut to fit beside its message (SPEC F3)
_SURELY_SHORT = MAX_FIELD_BYTES // 4  # in characters, of at most 4 bytes
_LONGER_LIMITS = {"traceback": 16_384, "record": MAX_RECORD_BYTES}

_NOT_SHOWN = frozenset({"event", "state", "consumer", "error_type", "traceback"})


def _shown(value: object) -> str:
    if type(value) is int:
        return str(value)
    text = value if type(value) is str else text_of(value, MAX_RECORD_BYTES)
    return text if text and text.isprintable() and " " not in text else repr(text)


def _bounded(name: str, value: str) -> str:
    """Return a text cut to the length that a line shows. A body, which ``LogOptions`` asks for, is not cut."""
    if name == "body":
        return value
    from tarry.message.diagnosis import shortened

    return shortened(value, _LONGER_LIMITS.get(name, MAX_FIELD_BYTES))


def _safe_names(fields: Fields) -> dict[str, Any]:
    """Rename fields that have a name of logging's own: logging refuses them, and ``redact`` may have made one."""
    if _RESERVED.isdisjoint(fields):
        return dict(fields)
    return {(f"{name}_" if name in _RESERVED else name): value for name, value in fields.items()}


_RESERVED = frozenset(
    "args asctime created exc_info exc_text filename funcName levelname levelno lineno message module msecs msg name "
    "pathname process processName relativeCreated stack_info taskName thread threadName".split()
)


def _last_resort(fields: Fields, failure: BaseException) -> None:
    import sys

    try:
        sys.stderr.write(
            f"tarry: {fields.get('event')} {fields.get('message_id')!r}: log failed: {name_of(type(failure))}\n"
        )
    except Exception:  # noqa: BLE001 there is nowhere else to report it
        return
