"""Text for a terminal and for pages: errors, times and durations, dead letters; control characters are escaped."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError
from tarry.failed.dead_letters import plain
from tarry.failed.queue_names import queue_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.record.attribute import FailureRecord


_BODY_OF_MESSAGE = re.compile(r"^((?:undecodable: )?)(?:Undecodable: )?the body of message [^\s,]+")
_MODULES = re.compile(r"(?<![\w.])(?:\w+\.)+(?=[A-Z]\w*(?:: |$))")
"""The modules before the name of an error, which are left out to save space; the failure record has them."""


def printable(text: str, keep: str = "") -> str:
    """Escape control characters except those in ``keep``, so that no text can move the cursor."""
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def shortened(text: str, most: int) -> str:
    """Return at most ``most`` characters of the text, control characters escaped."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


MAX_LINE_CHARACTERS = 300
"""The most characters of an error on one line; the failure record has all."""


def one_line(text: str) -> str:
    """Return the text of an error on one line, without the frames of tracebacks in it, cut if it is very long."""
    found, in_frames = "", False
    for line in text.splitlines():
        in_frames = line.startswith("Traceback (") or (in_frames and line.startswith((" ", "\t")))
        if in_frames or not line.strip() or line.lstrip().startswith("For further information visit"):
            continue
        between = " " if found.endswith((".", ":")) else ": " if line.startswith(" ") else "; "
        found += between + line.strip() if found else line.strip()
    return shortened(found, MAX_LINE_CHARACTERS)


def brief(text: str) -> str:
    """Shorten the reason of a state: leave out modules of errors, and prefixes of tarry's own errors."""
    text = _MODULES.sub("", one_line(text)).replace("rejected: Reject: ", "rejected: ")
    return without_message_id(text)


def without_message_id(text: str) -> str:
    """Leave out the id from the error of a body that cannot be decoded; it is beside the text anyway."""
    return _BODY_OF_MESSAGE.sub(r"\1the body", text)


def clock(seconds: float) -> str:
    """Return seconds as ``h:mm:ss.s``."""
    tenths = round(seconds * 10)
    return f"{tenths // 36000}:{tenths // 600 % 60:02}:{tenths // 10 % 60:02}.{tenths % 10}"


def duration(seconds: float) -> str:
    """Return a duration with units: ``90`` becomes ``1 min 30 s``."""
    whole = round(seconds)
    if whole < 1:
        return f"{seconds:.1g} s"
    parts = (whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def minutes(seconds: float) -> str:
    """Return a duration in whole minutes; below one, in seconds."""
    return duration(seconds if seconds < 60 else 60 * round(seconds / 60))


def coarse(seconds: float) -> str:
    """Return a duration in whole seconds; above an hour, in whole minutes."""
    whole = round(seconds)
    return duration(whole if whole < 3600 else whole - whole % 60)


LEAST_SECONDS = 1.0
"""The time after which a rate is shown."""


def progress_text(done: int, total: int, seconds: float, *, is_exact: bool = False) -> str:
    """Return how much is done of how much, at what rate, and how long it takes until the end."""
    total = max(total, done)
    text = f"{done:,} of {'' if is_exact else 'about '}{total:,}"
    if seconds < LEAST_SECONDS or not done:
        return text
    rate = done / seconds
    shown = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
    left = (total - done) / rate
    return f"{text}, {shown}" + (f", {duration(left)} left" if left >= 1 else "")


SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_PART = re.compile(r"([\d.]+)([smhd])")


def parsed_duration(text: str, of: str) -> float:
    """Return a duration such as ``90s``, ``15m``, ``2h`` or ``1h30m`` in seconds. ``of`` names it in the error.

    Raises `ConfigurationError`.
    """
    if not _DURATION.fullmatch(text):
        raise ConfigurationError(f"{of} must be a duration such as 90s, 15m, 2h or 1h30m, got {text!r}")
    return sum(float(number) * SECONDS[unit] for number, unit in _PART.findall(text))


def moment(text: str, of: str, now: float) -> float:
    """Return a time in epoch seconds: a date or time in ISO 8601, in UTC without an offset, or a duration before now.

    Raises `ConfigurationError`.
    """
    if _DURATION.fullmatch(text):
        if (before := now - parsed_duration(text, of)) < 0:
            raise ConfigurationError(f"{of} {text} is before 1970: SQS keeps a message for at most 14 days")
        return before
    seconds = seconds_of(text)
    if seconds is None:
        example = "a time such as 2026-11-21T08:00Z, or a duration such as 2h"
        raise ConfigurationError(f"{of} must be {example}, got {text!r}")
    return seconds


def when(dead_letter: DeadLetterMessage) -> str | None:
    """Return when the message was dead-lettered, in UTC; without a failure record, when it was sent."""
    failed_at = dead_letter.failure.failed_at if dead_letter.failure else None
    return failed_at or dead_letter.sent_at


def seconds_between(first: str | None, last: str | None) -> float | None:
    """Return the seconds from one time to another; None if one is unknown."""
    start, end = seconds_of(first), seconds_of(last)
    return None if start is None or end is None else end - start


def seconds_of(text: str | None) -> float | None:
    """Return a time in ISO 8601, in UTC without an offset, in epoch seconds; None if it is unknown, or is not one."""
    from datetime import UTC, datetime

    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


# dead letters

ATTRIBUTES, EXTRA = "attributes", "extra"
BRIEF_LENGTH = 200
NO_RECORD = "no failure record (not dead-lettered by tarry)"


def count_of(number: int) -> str:
    return f"{number:,} dead letter{'s'[: number != 1]}"


def attempts_of(failure: FailureRecord) -> str:
    """Return the number of attempts, after "at most" if it may be too high; empty if it is unknown."""
    at_most = "at most " if failure.attempts_at_most else ""
    return "" if failure.attempts is None else f"{at_most}{failure.attempts}"


def brief_failure(failure: FailureRecord | None) -> str:
    """Return a failure as one line; None is that of a message that SQS moved."""
    if failure is None:
        return NO_RECORD
    error = ": ".join(filter(None, [failure.type, failure.message]))
    if failure.reason in (None, "exhausted", "error") and error:
        return printable(_cut(error))
    if (failure.type or "").startswith("tarry."):
        # The reason says it already, such as "rejected: tarry.Reject: ...".
        error = without_message_id(failure.message or "")
    return printable(_cut(": ".join(filter(None, [failure.reason, error])) or "no reason recorded"))


def origin_name(dead_letter: DeadLetterMessage) -> str:
    """Return the name of the queue it came from; empty if unknown."""
    return queue_name(dead_letter.origin or "")


def minute(moment: str | None) -> str:
    """Return a time to the minute; empty if it is unknown."""
    return (moment or "")[:16].replace("T", " ")


def facts_of(dead_letter: DeadLetterMessage) -> list[tuple[str, str]]:
    """Return all facts about a dead letter but its id, history, traceback and body, each with its name.

    Control characters are not escaped.
    """
    failure = dead_letter.failure
    attributes = dead_letter.attributes
    facts: list[tuple[str, Any]] = [
        ("SQS message id", dead_letter.delivery_id if dead_letter.delivery_id != dead_letter.id else None),
        ("origin", origin_name(dead_letter) or "unknown"),
        ("group", dead_letter.group_id),
        ("sent", dead_letter.sent_at),
        ("edited", dead_letter.edited),
        (ATTRIBUTES, json.dumps(plain(attributes)) if attributes else None),
    ]
    if failure is None:
        facts += [("dead-lettered", NO_RECORD), ("log query", insights_query(dead_letter))]
    else:
        count = failure.attempts
        attempts = "" if count is None else f", after {attempts_of(failure)} attempt{'s'[: count != 1]}"
        attempts += _since_redrive(dead_letter)
        ran = " ".join(filter(None, [failure.function, failure.request_id and f"(request {failure.request_id})"]))
        facts += [
            ("first failed", failure.first_failed_at),
            (
                "dead-lettered",
                f"{failure.failed_at or 'time unknown'}: {failure.reason or 'no reason recorded'}{attempts}",
            ),
            ("crashes", failure.crashes),
            ("error", ": ".join(filter(None, [failure.type, failure.message])) or None),
            ("verdict", failure.said),
            ("fingerprint", failure.fingerprint),
            ("function", ran or None),
            (EXTRA, json.dumps(failure.extra) if failure.extra else None),
        ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _since_redrive(dead_letter: DeadLetterMessage) -> str:
    """Return how many of the attempts came after the message was last sent back; empty if it never was."""
    failure, last = dead_letter.failure, attempt_of(dead_letter.history[-1]) if dead_letter.history else None
    if failure is None or failure.attempts is None or last is None or last >= failure.attempts:
        return ""
    return f" in all, {last} of them since it was last sent back"


def attempt_of(entry: Mapping[str, Any]) -> int | None:
    """Return the number of the attempt that an entry of the history is about; it begins anew with each redrive."""
    found = entry.get("attempt")
    return found if type(found) is int and found > 0 else None


def insights_query(dead_letter: DeadLetterMessage) -> str:
    """Return a CloudWatch Logs Insights query that finds the message in the log group of its function."""
    return f'fields @timestamp, @message | filter @message like "{dead_letter.delivery_id}" | sort @timestamp asc'


def traceback_of(failure: FailureRecord | None) -> str:
    """Return the traceback, which ends with the text of the error; empty if there is none."""
    if failure is None or not failure.traceback:
        return ""
    text = failure.traceback.rstrip("\n")
    last = text.rpartition("\n")[2]
    # The record has the error's text only once.
    return f"{text}: {failure.message}" if failure.message and last == failure.type else text


def has_history(dead_letter: DeadLetterMessage) -> bool:
    """Return whether the history has more than the last attempt: tarry does not record retries in place."""
    failure = dead_letter.failure
    return len(dead_letter.history) > 1 or any(
        failure is None or entry.get("attempt") != failure.attempts for entry in dead_letter.history
    )


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= BRIEF_LENGTH else text[: BRIEF_LENGTH - 3] + "..."
