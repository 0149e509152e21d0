"""The rule about copies: each has an original, and is not changed on its way."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING, Any

from tarry.record.attribute import ATTRIBUTE, is_ours
from tarry.tools.testing.checkers.violation import Found, violation
from tarry.tools.testing.deliveries import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.testing.deliveries import MessageCopy
    from tarry.tools.testing.recorded_history import RecordedHistory


def copies_match_their_originals(history: RecordedHistory) -> Found:
    """A copy that a function sends is of a message that it had, with the same group and trace header.

    Body and attributes are the same too, unless the copy's record says that a failure step edited them. OpenTelemetry's
    propagators may add attributes.
    """
    rule = "copies match their originals"
    for copy in history.copies.values():
        if copy.sender not in history.invocations:
            continue
        if copy.came_from is None:
            if TRANSFERS & set(copy.record or ()):
                yield violation(rule, copy, "a copy of a message that its sender did not have", copy.sent.at)
            continue
        for what, had, has in _compared(copy.came_from.copy, copy):
            if had != has:
                yield violation(rule, copy, f"its copy has {what}: {has!r:.200}, not {had!r:.200}", copy.sent.at)
    for run in history.runs:
        strange = [each for each in run.messages if each not in history.invocations[run.request_id].batch]
        if strange:
            yield violation(
                rule, history.copies[strange[0]], "ran in an invocation that was not handed it", run.began.at
            )


def _compared(original: MessageCopy, copy: MessageCopy) -> list[tuple[str, Any, Any]]:
    had, has = original.sent.fields, copy.sent.fields
    group = has.get("group") if copy.sent_to.endswith(".fifo") or had.get("group") else None
    own_group = had.get("group") or (original.id if copy.sent_to.endswith(".fifo") else None)
    edited = (copy.record or {}).get("edited")
    is_edited = edited is not None and edited != (original.record or {}).get("edited")
    attributes = _users(original)
    traced = _propagated().difference(attributes)
    carried = {name: value for name, value in _users(copy).items() if name not in traced}
    contents = [("another body", original.body, copy.body), ("other attributes", attributes, carried)]
    return [
        *([] if is_edited else contents),
        ("another group", own_group, group),
        ("another trace header", had.get("trace_header"), has.get("trace_header")),
    ]


def _users(copy: MessageCopy) -> dict[str, Any]:
    """The attributes that are not tarry's."""
    return {name: value for name, value in copy.attributes.items() if name != ATTRIBUTE or not _is_ours(value)}


def _propagated() -> frozenset[str]:
    """Return the names of the attributes with which OpenTelemetry's propagators trace a copy, as tarry sends it."""
    propagate = modules.get("opentelemetry.propagate")
    try:
        return frozenset() if propagate is None else frozenset(propagate.get_global_textmap().fields)
    except Exception:  # noqa: BLE001 a propagator of the user's
        return frozenset()


def _is_ours(attribute: Mapping[str, Any]) -> bool:
    return is_ours({"stringValue": attribute.get("StringValue")})
