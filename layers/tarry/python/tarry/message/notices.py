"""Notices: log lines as values. Planning does not log; it returns notices with the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.message.diagnosis import Diagnosis


DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # the levels of `logging`, which the first line imports


class Notice(Value):
    """A log line about one delivery, for `Log.notices`."""

    event: str
    text: str
    error: BaseException | Diagnosis | None = None
    level: int = ERROR
    more: dict[str, Any] | None = None
