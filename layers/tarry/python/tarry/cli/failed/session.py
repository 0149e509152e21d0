"""What every command of `tarry failed` works with: the AWS client, the queues, the signals."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from tarry import failed
from tarry.cli.errors import note, refusals
from tarry.cli.failed.reporting import ResultReport, about
from tarry.cli.failed.signals import Stopped, Stopping
from tarry.cli.failed.targets import AwsAccess, TargetOptions, Targets, find_targets
from tarry.world import use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.failed import DeadLetterQueue, Inspection


@dataclass
class CommandSession:
    """What every command needs: its options, the queues, and whether to stop."""

    where: TargetOptions
    account: AwsAccess
    targets: Targets
    queues: list[DeadLetterQueue]
    stopping: Stopping
    guidance: Console
    told: ResultReport | None = None

    def something_was_done(self) -> bool:
        return self.told is not None and bool(self.told.counts["retried"] or self.told.counts["deleted"])

    @contextmanager
    def opened(self, queue: DeadLetterQueue, keepalive: float) -> Iterator[Inspection]:
        about(queue)
        try:
            with failed.opened(queue, keepalive=keepalive, stop=self._is_to_end) as inspection:
                yield inspection
        finally:
            if inspection.not_released:
                note(
                    f"{queue.name}: not released, hidden until their visibility times out: {inspection.not_released:,}"
                )

    def _is_to_end(self) -> bool:
        return self.stopping() or (self.told is not None and self.told.is_cut_off)

    def report(self, *, as_json: bool, shows_all: bool) -> ResultReport:
        self.told = ResultReport(self.guidance, as_json=as_json, shows_all=shows_all)
        return self.told

    def end(self, report: ResultReport) -> None:
        """Write the totals, and end the command."""
        if report.is_cut_off:
            note("output closed; stopped after the current dead letters")
        note(str(report))
        self.exit(report.exit_code)

    def exit(self, code: int) -> None:
        raise typer.Exit(self.stopping.exit_code if self.stopping() else code)


@contextmanager
def session(where: TargetOptions, *, needs_handlers: bool = False) -> Iterator[CommandSession]:
    """Find the queues, and turn every error of the input or of AWS into a line on stderr."""
    stopping = Stopping()
    guidance = Console(file=sys.stderr, highlight=False)
    run: CommandSession | None = None
    with refusals(lambda: run is not None and run.something_was_done(), aws=True):
        account = AwsAccess(where)
        with use(account.world()), stopping.listening():
            try:
                with stopping.at_prompt():  # nothing is at hand yet
                    targets = find_targets(where, account, needs_template=needs_handlers)
                    queues = [failed.find(each) for each in targets.queues]
                run = CommandSession(where, account, targets, queues, stopping, guidance)
                yield run
            except Stopped:
                if run is not None and run.told is not None:
                    note(f"\n{run.told}")
                raise typer.Exit(stopping.exit_code) from None
