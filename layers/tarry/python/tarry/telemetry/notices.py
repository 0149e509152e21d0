"""Log lines that planning asks for. Planning does not log: it returns notices with what it planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.telemetry.logs import ERROR

if TYPE_CHECKING:
    from tarry.telemetry.diagnosis import Diagnosis


class Notice(NamedTuple):
    """A line about one delivery, for `Log.notices`."""

    event: str
    text: str
    error: BaseException | Diagnosis | None = None
    level: int = ERROR
    more: dict[str, Any] | None = None
