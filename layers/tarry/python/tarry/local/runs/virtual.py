"""One run in virtual time: the template's queues and functions in a sandbox, where waits take no time."""

from __future__ import annotations

import io
import logging
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from tarry.local.aws.isolation import NOWHERE, isolated_from_aws, simulated_clients
from tarry.local.aws.resources import Resources, moto_for
from tarry.local.runs.report import RunReport, dead_letters_of, stories_of
from tarry.simulator.code import CodeError
from tarry.simulator.errors import InvalidParameterValue, SimulationError
from tarry.simulator.functions import current_call
from tarry.simulator.sqs import SqsError
from tarry.simulator.stack import in_debugger
from tarry.template import Template, TemplateError, TemplateMapping
from tarry.template.queues import with_foreign_queues
from tarry.testing import Sandbox
from tarry.tooling.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tarry.local.plan import Note, RunPlan, RunSettings
    from tarry.local.show.timeline import MessageTimeline


@dataclass(frozen=True)
class OutputLine:
    """A line of a function; ``function`` is its name, empty for what is nobody's."""

    at: float
    function: str
    text: str


@dataclass(frozen=True)
class VirtualRun:
    """A run that is over. ``began`` is in virtual epoch seconds; ``problem`` is why it ended too early, if it did."""

    report: RunReport
    said: Sequence[OutputLine]
    began: float
    problem: str = ""


def play(plan: RunPlan, settings: RunSettings, note: Note) -> VirtualRun:
    """Run the plan to its end.

    Raises:
        UsageError: a resource cannot be made, a handler not imported, a message not sent.
    """
    if not plan.samples:
        return VirtualRun(RunReport(expected=settings.expected), [], 0)
    began = time.monotonic()
    with (
        _surroundings(plan.template),
        Sandbox(region=plan.template.region) as sandbox,
        simulated_clients(sandbox.client),
    ):
        mappings = _assemble(sandbox, plan, settings, note)
        numbers = _send(sandbox, plan, note)
        transcript = Transcript(lambda: sandbox.now)
        problem, interrupted = _let_happen(sandbox, settings, transcript)
        told = sandbox.report()
        stories = stories_of(told, numbers, {mapping.queue for mapping in mappings})
        report = RunReport(
            stories=stories,
            dead_letters=dead_letters_of(stories, sandbox.sqs, sandbox.now),
            seconds=time.monotonic() - began,
            interrupted=interrupted,
            virtual_seconds=_seconds(stories, sandbox),
            violations=[] if problem or interrupted else told.violations,
            expected=settings.expected,
        )
        return VirtualRun(report, transcript.lines, sandbox.now - sandbox.elapsed, problem)


def _seconds(stories: Sequence[MessageTimeline], sandbox: Sandbox) -> float:
    """How long it took; a run that is to be given up at some time goes on until then, though all has settled."""
    ended = [step.at for story in stories for step in story.steps]
    is_over = ended and all(story.is_settled for story in stories)
    return max(ended) - (sandbox.now - sandbox.elapsed) if is_over else sandbox.elapsed


@contextmanager
def _surroundings(template: Template) -> Iterator[None]:
    """What there is of AWS beside SQS: moto, if the template has anything for it."""
    if not template.backing:
        with isolated_from_aws(template.region, NOWHERE):
            yield
        return
    with moto_for(template) as url, isolated_from_aws(template.region, url):
        yield


def _assemble(sandbox: Sandbox, plan: RunPlan, settings: RunSettings, note: Note) -> list[TemplateMapping]:
    """Make what the template says; the mappings that feed functions here."""
    template = plan.template
    resources = Resources(template, {name: sandbox.sqs.url(name) for name in with_foreign_queues(template)})
    environment: dict[str, dict[str, str]] = {}
    mappings = []
    for mapping in template.mappings:
        function = template.functions.get(mapping.function)
        if function is None or function.code is None:
            continue  # nothing here feeds on that queue
        try:
            environment[function.name] = resources.environment(function, settings.overrides.of(function))
        except (UsageError, TemplateError) as error:
            if mapping in plan.mappings:
                raise
            note(f"{function.logical_id} is left out: {error}")
            continue
        mappings.append(mapping)
    try:
        sandbox.add_template(replace(template, mappings=tuple(mappings)), environment=environment)
        with redirect_stdout(sys.stderr):
            for mapping in plan.mappings:
                sandbox.module(mapping.function)
    except CodeError as error:
        raise UsageError(str(error), error.details) from error
    except (ClientError, InvalidParameterValue) as error:
        raise UsageError(f"{template.path}: AWS refuses {error}") from error
    return mappings


def _send(sandbox: Sandbox, plan: RunPlan, note: Note) -> dict[str, int]:
    """Put the records in their queues, in the order of the event; their numbers by SQS's ids."""
    queues = with_foreign_queues(plan.template)
    numbers: dict[str, int] = {}
    for sample in plan.samples:
        try:
            request = sample.request(queues[sample.queue], sandbox.sqs.url(sample.queue))
            message_id = sandbox.sqs.call("SendMessage", request)["MessageId"]
        except SqsError as error:
            raise UsageError(f"SQS refuses record {sample.number}: {error.message}") from error
        if message_id in numbers:
            note(f"SQS swallows record {sample.number}: its deduplication id was sent before.")
        numbers.setdefault(message_id, sample.number)
    return numbers


def _let_happen(sandbox: Sandbox, settings: RunSettings, transcript: Transcript) -> tuple[str, bool]:
    """Run until nothing is left to happen; what ended it before, and whether that was Ctrl-C."""
    with transcript.recording(), logging_to(transcript.note, verbose=settings.verbose):
        try:
            sandbox.run(for_=settings.give_up_seconds, check=False)
        except SimulationError as error:
            return str(error), False
        except CodeError as error:
            raise UsageError(str(error), error.details) from error
        except KeyboardInterrupt:
            return "", True
    return "", False


# what functions print and log meanwhile


class Transcript(io.TextIOBase):
    """A stream that keeps what is written to it, but for what a debugger has to say at once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lines: list[OutputLine] = []
        self._now = now
        self._begun = ""
        self._terminal = sys.stdout

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if in_debugger(sys._getframe()):
            self._terminal.write(text)
            self._terminal.flush()
            return len(text)
        *whole, self._begun = (self._begun + text).split("\n")
        call = current_call()
        function = call.environment.function.settings.name if call else ""
        self.lines += [OutputLine(self._now(), function, line) for line in whole]
        return len(text)

    def note(self, text: str) -> None:
        """A line, or some."""
        self.write(text + "\n")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Stdout and stderr go here, for as long as the context lasts."""
        with redirect_stdout(self), redirect_stderr(self):
            yield
        if self._begun:
            self.note("")


class _Lines(logging.Handler):
    """Shows of tarry's log the warnings that name no message: what becomes of messages is told otherwise."""

    def __init__(self, note: Note, *, verbose: bool) -> None:
        super().__init__()
        self._note = note
        self._verbose = verbose
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        is_transition = bool(fields.get("state") and fields.get("delivery_id"))
        if self._verbose or (not is_transition and record.levelno >= logging.WARNING):
            self._note(self.format(record))


@contextmanager
def logging_to(note: Note, *, verbose: bool) -> Iterator[None]:
    """Hear the logs for as long as the context lasts. The root logger writes to stderr, as Lambda's does."""
    told = _Lines(note, verbose=verbose)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    tarry, root = logging.getLogger("tarry"), logging.getLogger()
    before = tarry.level, tarry.propagate
    tarry.addHandler(told)
    tarry.setLevel(logging.INFO)
    tarry.propagate = False
    root.addHandler(lines)
    try:
        yield
    finally:
        root.removeHandler(lines)
        tarry.removeHandler(told)
        tarry.setLevel(before[0])
        tarry.propagate = before[1]
