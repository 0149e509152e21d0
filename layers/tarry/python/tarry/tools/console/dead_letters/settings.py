"""How dead letters are retried, as the form of a preview says it: the settings of `tarry failed retry`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.failed.canary import Canary
from tarry.failed.pacing import Limits, parse_rate, parse_share
from tarry.failed.periods import duration
from tarry.failed.usage import UsageError
from tarry.sqs.limits import MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DIGITS = 10
CONCURRENCY = 4
"""The threads of a retry without a rate: each receives ten dead letters, sends them, and deletes them."""
NAMES = ("canary", "within", "rate", "max_return", "to")


class RetryForm(NamedTuple):
    """The settings of a retry, checked, and as they were typed."""

    canary: int | None = None
    within: float | None = None
    """The seconds to watch the canaries; None for as long as they may take."""
    limits: Limits = Limits()
    to: str | None = None
    """The queue to send all to; None to send each to the queue that it came from."""
    typed: tuple[tuple[str, str], ...] = ()

    @property
    def concurrency(self) -> int:
        """The number of threads."""
        return 1 if self.limits.rate is not None else CONCURRENCY

    @property
    def in_doubt(self) -> int:
        """The most messages that may be delivered twice if the console is killed."""
        return MAX_ENTRIES * self.concurrency

    @property
    def options(self) -> list[str]:
        """The settings as options of `tarry failed retry`."""
        options = [part for name, text in self.typed for part in (f"--{name.replace('_', '-')}", text)]
        return options + (["--concurrency", str(self.concurrency)] if self.concurrency > 1 else [])

    @property
    def text(self) -> str:
        """The settings on one line: other settings have another one."""
        return json.dumps(self.typed)

    def fields(self) -> dict[str, Any]:
        """Return the settings for the audit."""
        return {
            "via": "queue",
            "to": self.to,
            "canary": self.canary,
            "within": self.within,
            "rate": self.limits.rate,
            "max_return": self.limits.max_return,
        }


def parsed(form: Mapping[str, Any], *, by_id: bool) -> RetryForm:
    """Parse the fields of a form. ``by_id``: the dead letters are selected one by one.

    Raises:
        UsageError, ConfigurationError: a field is wrong.
    """
    typed = {name: text for name in NAMES if (text := str(form.get(name, "")).strip())}
    canary = None
    if "canary" in typed:
        if not (typed["canary"].isascii() and typed["canary"].isdecimal() and len(typed["canary"]) < MAX_DIGITS):
            raise UsageError(f"the number of canaries must be a whole number, such as 10, got {typed['canary']!r:.50}")
        canary = int(typed["canary"])
    if canary is not None and by_id:
        raise UsageError(
            "canaries are the first of many, and these dead letters are selected one by one: select by a filter, or "
            "leave the canaries out"
        )
    within = duration(typed["within"], "the time to watch canaries") if "within" in typed else None
    if within is not None and canary is None:
        raise UsageError("the time to watch canaries needs a number of canaries: give one, or leave the time out")
    if canary is not None:
        Canary(canary, within)  # raises if one is out of range
    rate = parse_rate(typed["rate"]) if "rate" in typed else None
    share = parse_share(typed["max_return"]) if "max_return" in typed else None
    return RetryForm(canary, within, Limits(rate, share), typed.get("to"), tuple(typed.items()))
