"""Notices: log lines as values. Planning does not log; it returns notices with the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.telemetry.logs import ERROR

if TYPE_CHECKING:
    from tarry.telemetry.diagnosis import Diagnosis


class Notice(NamedTuple):
    """A log line about one delivery, for `Log.notices`."""

    event: str
    text: str
    error: BaseException | Diagnosis | None = None
    level: int = ERROR
    more: dict[str, Any] | None = None
