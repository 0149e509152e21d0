"""The settings of `tarry failed retry`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarry.failed.canary import Canary
from tarry.failed.pacing import Limits, parse_rate, parse_share
from tarry.failed.periods import duration
from tarry.failed.usage import UsageError
from tarry.tools.cli.options import Via

if TYPE_CHECKING:
    from tarry.failed import Selection


@dataclass(frozen=True)
class RetrySettings:
    """How dead letters are retried."""

    via: Via
    limits: Limits
    canary: int | None = None
    within: float | None = None
    """The seconds to watch the canaries; None for as long as they may take."""
    concurrency: int = 1
    dry_run: bool = False

    @classmethod
    def parsed(  # noqa: PLR0913 the options of the command
        cls,
        selection: Selection,
        via: Via,
        *,
        canary: int | None,
        within: str | None,
        rate: str | None,
        max_return: str | None,
        concurrency: int,
        edit: bool,
        dry_run: bool,
    ) -> RetrySettings:
        """Parse and check the options. Raises `UsageError` and `ConfigurationError`."""
        given = {"--canary": canary, "--rate": rate, "--max-return": max_return}
        given |= {"--concurrency": concurrency > 1 or None, "--edit": edit or None}
        options = [name for name, value in given.items() if value is not None]
        if edit and not selection.ids:
            raise UsageError(
                "--edit needs ids: give ids, or run without --all and --where to edit each dead letter when it is shown"
            )
        if within is not None and canary is None:
            raise UsageError("--within says how long to watch canaries: give --canary N")
        if canary is not None and not (selection.is_filter or selection.everything):
            raise UsageError("--canary retries some of a selection first: give --group, --where or --all")
        _check_via(via, selection, options)
        limits = Limits(
            None if rate is None else parse_rate(rate), None if max_return is None else parse_share(max_return)
        )
        seconds = None if within is None else duration(within, "--within")
        if canary is not None:
            Canary(canary, seconds)  # raises before the queues are asked
        return cls(via, limits, canary, seconds, concurrency, dry_run)

    def fields(self) -> dict[str, Any]:
        """Return the settings for the audit."""
        return {
            "via": self.via.value,
            "canary": self.canary,
            "within": self.within,
            "rate": self.limits.rate,
            "max_return": self.limits.max_return,
        }

    @property
    def text(self) -> str:
        """The settings for the question before a retry."""
        return f", {self.canary:,} of them first" if self.canary else ""


def _check_via(via: Via, selection: Selection, options: list[str]) -> None:
    """Check the options that a way of retrying does not have. Raises `UsageError`."""
    if via is Via.local:
        for name in ("--canary", "--rate", "--max-return", "--concurrency"):
            if name in options:
                raise UsageError(f"--via local runs one dead letter at a time: leave out {name}")
    if via is Via.aws:
        if not selection.everything or selection.is_filter:
            raise UsageError(
                "--via aws moves the whole dead-letter queue: give --all, without ids, --where, --group, --since "
                "and --until"
            )
        for name in options:
            if name != "--rate":
                raise UsageError(f"--via aws lets SQS move the messages: leave out {name}")
