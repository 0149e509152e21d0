"""Dead letters and their groups in words, for a terminal and for the console. Control characters are escaped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarry.failed.dead_letters import plain
from tarry.failed.queue_names import queue_name
from tarry.failed.text import printable, without_message_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.groups import Group
    from tarry.failed.inspection import Inspection
    from tarry.record.attribute import FailureRecord

ATTRIBUTES, EXTRA = "attributes", "extra"
BRIEF_LENGTH = 200
NO_RECORD = "no failure record (not dead-lettered by tarry)"
DATE_LENGTH = len("2026-11-21 ")


def count_of(number: int) -> str:
    return f"{number:,} dead letter{'s'[: number != 1]}"


def lost_leases(inspection: Inspection) -> str:
    """Return sentences about dead letters that did not stay in flight until the end; empty if all did."""
    times = "once" if inspection.leases.lost == 1 else f"{inspection.leases.lost:,} times"
    texts = []
    if inspection.leases.lost:
        texts.append(
            f"Visibility timeouts ended before they could be extended ({times}); other consumers could receive these "
            "dead letters meanwhile."
        )
    if inspection.is_outrun:
        texts.append("They became visible again faster than all could be received, so some may be missing.")
    return " ".join([*texts, "Use a longer --keepalive."]) if texts else ""


def newer(inspection: Inspection) -> str:
    """Return a sentence about dead letters that came after the preview of a selection; empty if none did."""
    count = inspection.newer
    left = "is left" if count == 1 else "are left"
    return f"{count_of(count)} came after the command began, or after the preview, and {left}." if count else ""


def attempts_of(failure: FailureRecord) -> str:
    """Return the number of attempts, after "at most" if it may be too high; empty if it is unknown."""
    at_most = "at most " if failure.attempts_at_most else ""
    return "" if failure.attempts is None else f"{at_most}{failure.attempts}"


def brief(dead_letter: DeadLetterMessage) -> str:
    return brief_failure(dead_letter.failure)


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


def period(group: Group) -> str:
    """Return when the dead letters of a group came, and how often."""
    first, last = minute(group.first), minute(group.last)
    if not first:
        return "time unknown"
    often = group.per_minute
    between = first if first == last else f"{first} to {last[DATE_LENGTH:] if first[:10] == last[:10] else last}"
    return f"{between} UTC" + (f", {often_text(often)}" if often is not None else "")


def often_text(per_minute: float) -> str:
    return f"{per_minute:,.0f} a minute" if per_minute >= 10 else f"{per_minute:.2g} a minute"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= BRIEF_LENGTH else text[: BRIEF_LENGTH - 3] + "..."
