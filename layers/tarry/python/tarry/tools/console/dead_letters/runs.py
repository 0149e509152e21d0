"""The work of the jobs, in their threads: scan, retry, edit and retry, remove. `tarry.failed` carries all of it out."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from tarry import failed
from tarry.failed import DeadLetterQueue, Inspection, Selection
from tarry.failed.archive import new_archive
from tarry.failed.journal import CannotWrite
from tarry.failed.leases import INTERVALS
from tarry.failed.pacing import RetrySettings
from tarry.failed.removing import Result, skipped
from tarry.failed.selection import by_ids, lost_leases, newer, not_found, selection_fields
from tarry.failed.text import count_of, duration, parsed_duration
from tarry.failed.usage import UsageError
from tarry.sqs.client import MAX_PARALLEL
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.tools.common.audit import Audit
from tarry.tools.console.access import Console
from tarry.tools.console.dead_letters.jobs import QueueJob
from tarry.tools.console.dead_letters.snapshots import Snapshot, Snapshots
from tarry.world import current

MAX_DIGITS = 10
CONCURRENCY = 4
"""The threads of a retry without a rate: each receives ten dead letters, sends them, and deletes them."""
NAMES = ("canary", "within", "rate", "max_return", "to")


class RetryForm(NamedTuple):
    """The settings of a retry, checked, and as they were typed."""

    settings: RetrySettings = RetrySettings()
    to: str | None = None
    """The queue to send all to; None to send each to the queue that it came from."""
    typed: Mapping[str, str] = MappingProxyType({})

    @property
    def concurrency(self) -> int:
        return 1 if self.settings.limits.rate is not None else CONCURRENCY

    @property
    def in_doubt(self) -> int:
        """The most messages that may be delivered twice if the console is killed."""
        return MAX_ENTRIES * self.concurrency

    @property
    def options(self) -> list[str]:
        """The settings as options of `tarry failed retry`."""
        options = [part for name, text in self.typed.items() for part in (f"--{name.replace('_', '-')}", text)]
        return options + (["--concurrency", str(self.concurrency)] if self.concurrency > 1 else [])

    @property
    def text(self) -> str:
        """The settings on one line: other settings have another one."""
        return json.dumps([*self.typed.items()])

    def fields(self) -> dict[str, Any]:
        return {"via": "queue", "to": self.to, **self.settings.fields()}


def parsed(form: Mapping[str, Any], *, by_id: bool) -> RetryForm:
    """Parse a form, ``by_id`` if it selects dead letters one by one. Raises `UsageError` and `ConfigurationError`."""
    typed = {name: text for name in NAMES if (text := str(form.get(name, "")).strip())}
    canary = typed.get("canary")
    if canary and not (canary.isascii() and canary.isdecimal() and len(canary) < MAX_DIGITS):
        raise UsageError(f"the number of canaries must be a whole number, such as 10, got {typed['canary']!r:.50}")
    if canary and by_id:
        raise UsageError(
            "canaries are the first of many, and these dead letters are selected one by one: select by a filter, or "
            "leave the canaries out"
        )
    within = parsed_duration(typed["within"], "the time to watch canaries") if "within" in typed else None
    if within is not None and canary is None:
        raise UsageError("the time to watch canaries needs a number of canaries: give one, or leave the time out")
    settings = RetrySettings(int(canary) if canary else None, within, typed.get("rate"), typed.get("max_return"))
    return RetryForm(settings, typed.get("to"), typed)


FORGOTTEN_AT_ONCE = 200
REMOVED_AT_ONCE = 4
"""The requests of a removal that are sent at once, ten dead letters each."""
REMEDY = "nothing more is removed; make room on its disk, or use tarry failed remove --archive FILE in a terminal"
"""The remedy if the archive cannot be written: the console has no option that names another."""
CHANGED = "its body is not the one that was edited: another message has this id, or a failure step changed it"


class JobRun(NamedTuple):
    """The job that runs, and what it works on."""

    console: Console
    job: QueueJob
    queue: DeadLetterQueue
    snapshot: Snapshot | None = None

    def forget(self, gone: list[str]) -> None:
        """Remove dead letters that have left the queue from the snapshot, and from the list."""
        if self.snapshot is not None and gone:
            self.snapshot.forget(gone)
        gone.clear()


# scans


def scan(run: JobRun, snapshots: Snapshots) -> None:
    """Receive all dead letters into a new snapshot."""
    job, queue, clock = run.job, run.queue, current().clock
    snapshot = snapshots.begin(queue, clock.time())
    try:
        with _opened(run) as inspection:

            def add(dead_letters: list[failed.DeadLetterMessage]) -> list[None]:
                for each in dead_letters:
                    snapshot.add(each)
                job.at(inspection.scanned, max(queue.about, inspection.scanned))
                return []

            for _ in inspection.in_threads(add, MAX_PARALLEL):
                pass
            job.at(inspection.scanned, phase=f"making {count_of(inspection.scanned)} visible again")
    except BaseException:
        snapshots.discard(snapshot)
        raise
    is_complete = not (job.should_stop() or inspection.is_full or inspection.is_outrun or _is_short(inspection))
    snapshot.end(clock.time(), is_complete=is_complete)
    snapshot.groups("fingerprint")
    snapshots.put(snapshot)
    found = job.counts["found"] = len(snapshot)
    job.note(f"{count_of(found)} of about {max(queue.about, found):,} in {inspection.requests:,} requests.")
    _note_limits(job, inspection)
    if snapshot.dropped:
        job.note(f"The bodies of {snapshot.dropped:,} do not fit into the memory of the console; the groups have all.")


# retries


def dry_run(run: JobRun, selection: Selection, form: RetryForm) -> None:
    """Report what a retry would do to each dead letter, without changing anything."""
    routes = failed.Routes(run.queue, form.to)
    queues: Counter[str] = Counter()
    with _opened(run) as inspection:
        for result in failed.preview(inspection, selection, routes):
            run.job.add(result, lists=True)
            if result.outcome == "retried":
                queues[(result.note or "").removeprefix("to ")] += 1
    _note_limits(run.job, inspection)
    for name, count in queues.most_common():
        run.job.note(f"{count_of(count)} would be sent to {name}.")
    if first := min(form.settings.canary or 0, queues.total()):
        run.job.note(f"{first:,} of these first, and the others only if none of the {first:,} comes back.")
    _note_missing(run, run.job.counts.total() + inspection.handled.repeated)


def retry(run: JobRun, selection: Selection, form: RetryForm) -> None:
    """Send dead letters back to their queues."""
    job = run.job
    with _audited(run, "failed retry", selection, form.fields()) as audit:
        routes = failed.Routes(run.queue, form.to)

        def watching(left: float, total: float) -> None:
            seconds = f"{duration(left)} of {duration(total)} left"
            job.at(phase=f"watching whether canaries come back: {seconds}" if left >= 1 else "")

        with _opened(run, audit) as inspection:
            canary, limits = form.settings.watched(watching), form.settings.limits
            results = failed.retry(
                inspection, selection, routes, concurrency=form.concurrency, limits=limits, canary=canary
            )
            try:
                _report(run, audit, results)
            except (failed.CanaryReturned, failed.TooManyReturned) as error:
                audit.came_back = str(error)
                job.came_back = f"{error}."
        _note_limits(job, inspection)
    if audit.came_back:
        return
    _note_missing(run, job.counts.total() + inspection.handled.repeated)


def edit_and_retry(run: JobRun, delivery_id: str, before: str, body: str) -> None:
    """Send a dead letter back with another body. ``before`` is the body that was edited."""
    selection = failed.select([delivery_id])
    with _audited(run, "failed retry", selection, {"via": "queue"}) as audit:
        routes = failed.Routes(run.queue)
        with _opened(run, audit) as inspection:
            failed.check_may_delete(inspection)
            found = by_ids(inspection, [delivery_id]).get(delivery_id)
            if found is None:
                results = [] if run.job.should_stop() else [Result(delivery_id, "failed", not_found(inspection))]
            elif found.body != before:
                results = [skipped(found, CHANGED)]
            else:
                edited = failed.edit(found, body, current().clock.time())
                results = failed.retry_dead_letters(inspection, [edited], routes)
            _report(run, audit, results)
    if run.job.counts["retried"]:
        run.job.note("The message was sent back with the new body.")


# removals


def remove(run: JobRun, selection: Selection) -> None:
    """Delete dead letters, after they were written to an archive."""
    archive = failed.ArchiveFile(new_archive([run.queue.name], run.console.state), REMEDY)
    try:
        with _audited(run, "failed remove", selection, {"archive": str(archive.path)}) as audit:
            with _opened(run, audit) as inspection:
                results = failed.remove(inspection, selection, concurrency=REMOVED_AT_ONCE, archive=archive)
                _report(run, audit, results)
            _note_limits(run.job, inspection)
    finally:
        archive.close()
        if archive.count:
            options = ["--queue", run.queue.name, *run.console.place_options]
            command = ["tarry", "failed", "restore", str(archive.path), *options]
            run.job.note(f"Archive: {archive.path}. To restore them: {shlex.join(command)}")
    _note_missing(run, run.job.counts.total())


# shared by all


@contextmanager
def _audited(run: JobRun, command: str, selection: Selection, fields: dict[str, Any]) -> Iterator[Audit]:
    """Open the audit before anything changes, and write its line at the end, also after an error."""
    until = None if selection.ids or run.snapshot is None else run.snapshot.until
    asked = {"from": "tarry console", "queues": [run.queue.arn.text], **selection_fields(selection), "until": until}
    audit = Audit(run.console.audit_path, command, run.console.account, {**asked, **fields})
    if error := audit.line.get("who_error"):
        run.job.note(f"The audit does not say who you are at AWS: sts:GetCallerIdentity failed ({error}).")
    try:
        yield audit
    finally:
        try:
            audit.end(stopped=run.job.should_stop())
        except CannotWrite as error:
            run.job.note(f"The audit line could not be written ({str(error).partition(';')[0]}): {audit.line}")


@contextmanager
def _opened(run: JobRun, audit: Audit | None = None) -> Iterator[Inspection]:
    """Open the queue; report progress before each step, and what could not be released."""
    job = run.job
    inspection: Inspection | None = None

    def stop() -> bool:
        if inspection is not None:
            job.at(inspection.scanned, max(run.queue.about, inspection.scanned))
        return job.should_stop()

    try:
        longest, begin = run.console.keepalive, audit.begin if audit else lambda: None
        keepalive = max(1.0, longest / INTERVALS)
        with failed.opened(
            run.queue, keepalive=keepalive, longest=longest, stop=stop, before_change=begin
        ) as inspection:
            yield inspection
    finally:
        if inspection is not None and inspection.leases.not_released:
            job.note(
                f"{inspection.leases.not_released:,} dead letters could not be made visible again; they become visible "
                "when their visibility timeout ends."
            )


def _report(run: JobRun, audit: Audit, results: Iterable[Result]) -> None:
    """Count the results, and remove from the snapshot what has left the queue: some at once, for the lock."""
    gone: list[str] = []
    try:
        for result in results:
            run.job.add(result)
            audit.add(result)
            if result.outcome in ("retried", "deleted") and result.dead_letter is not None:
                gone.append(result.dead_letter.delivery_id)
            if len(gone) >= FORGOTTEN_AT_ONCE:
                run.forget(gone)
    finally:
        run.forget(gone)


def _note_limits(job: QueueJob, inspection: Inspection) -> None:
    """Add why not all of a queue was received."""
    if inspection.is_full:
        job.note("Too many messages are in flight to receive all; retry or remove some, then run it again.")
    elif _is_short(inspection) and not job.should_stop():
        job.note("FIFO delivers no more of a message group while its first messages are in flight.")
    if lost := lost_leases(inspection):
        job.note(lost)
    if inspection.newer:
        job.note(newer(inspection))
    if repeated := inspection.handled.repeated:
        job.note(f"{repeated:,} were skipped: their ids were handled before (duplicates, or dead-lettered again).")


def _is_short(inspection: Inspection) -> bool:
    """Whether a FIFO queue has more dead letters than were received."""
    return inspection.queue.arn.is_fifo and inspection.scanned < inspection.queue.about


def _note_missing(run: JobRun, handled: int) -> None:
    """Add that fewer dead letters were handled than the scan had found."""
    job = run.job
    missing = job.expected - handled
    if missing <= 0:
        return
    are, were = ("are", "were") if missing > 1 else ("is", "was")
    if job.should_stop():
        job.note(f"Stopped: {count_of(missing)} of the scan {are} left in {job.queue}.")
        return
    which = f"{count_of(missing)} of the scan {were} not in the queue any more"
    job.note(
        f"{which if handled else 'No dead letter matches any more'}: retried or removed since the scan, or in flight "
        "at another consumer. Scan again to see what is there now."
    )
