"""One run in virtual time: the template's queues and functions in a sandbox, where waits take no time."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tarry.failed.queue_names import redrive_of
from tarry.failed.text import coarse
from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import isolated_from_aws
from tarry.tools.local.aws.invoking import target_of, virtual_invoke
from tarry.tools.local.aws.services import Services
from tarry.tools.local.loops import RecursiveLoops
from tarry.tools.local.project import Note, with_placeholders
from tarry.tools.local.runs.printing import OutputLine, Transcript, logging_to
from tarry.tools.local.runs.report import RunReport, Waits, dead_letters_of, keep, messages_of
from tarry.tools.local.seeding import make_calls
from tarry.tools.simulator.actors import SimulationError
from tarry.tools.simulator.client import simulated_clients
from tarry.tools.simulator.code import CodeError
from tarry.tools.simulator.lambda_invoke import InvokeAnswer, InvokeTarget, UnknownFunction, invoke_error
from tarry.tools.simulator.mapping_settings import InvalidParameterValue
from tarry.tools.simulator.passing_time import passing_time
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.template import Template, TemplateError, TemplateMapping
from tarry.tools.template.code import missing_code
from tarry.tools.template.model import with_foreign_queues
from tarry.tools.testing.report import stories_of
from tarry.tools.testing.resources import Resources
from tarry.tools.testing.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tarry.tools.local.plan import RunPlan, RunSettings
    from tarry.tools.local.show.timeline import MessageTimeline
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.story.events import Story

MOST_FAILURES = 10
"""The deliveries in a row that a message must fail before it counts as failing without end."""
DEFAULT_RETENTION_SECONDS = 4 * 86_400


class _Message:
    """A message in a queue that feeds a function, and the number of deliveries in a row that failed."""

    def __init__(self, queue: str, group: str | None) -> None:
        self.queue = queue
        self.group = group if queue.endswith(".fifo") else None
        self.failures = 0
        self.is_refused = False
        """Whether Lambda refuses to invoke its function, which sends to its own queue: see `RecursiveLoops`."""

    @property
    def is_failing(self) -> bool:
        return self.failures >= MOST_FAILURES or self.is_refused


class EndlessFailures:
    """A listener to a history that tells when only the retention of messages can end them.

    A failure of a consumer of tarry counts once the consumer has nothing left to do with the message (``unhandled``);
    until then its own retries may help.
    """

    def __init__(self) -> None:
        self._consumed: set[str] = set()
        self._attributes: dict[str, Mapping[str, str]] = {}
        self._left: dict[str, _Message] = {}
        self._failing = 0
        """The number of messages left that fail without end."""
        self._running: dict[str, bool] = {}
        """The invocations under way by request id, and whether a consumer of tarry runs in them."""
        self._unhandled: set[str] = set()
        self._take: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "queue_configured": lambda fields: self._attributes.update({fields["queue"]: fields["attributes"]}),
            "connected": lambda fields: self._consumed.add(fields["queue"]),
            "sent": self._sent,
            "invoked": lambda fields: self._running.update({fields["request_id"]: False}),
            "consumed": lambda fields: self._running.update({fields["request_id"]: True}),
            "transition_logged": self._logged,
            "answered": self._answered,
            **dict.fromkeys(("deleted", "expired", "purged", "moved"), self._ended),
        }

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        if (take := self._take.get(event.what)) is not None:
            take(event.fields)

    @property
    def is_over(self) -> bool:
        """Whether every message that is left fails without end, or waits behind one in its FIFO group."""
        if not self._failing or self._running:
            return False
        failing = [message for message in self._left.values() if message.is_failing]
        if any(self._has_redrive(message.queue) for message in failing):
            return False
        groups = {(message.queue, message.group) for message in failing if message.group is not None}
        return all(message.is_failing or (message.queue, message.group) in groups for message in self._left.values())

    @property
    def text(self) -> str:
        """A sentence about the messages, with the remedy; empty if the run is not over, or recursive loops ended it."""
        messages = [message for message in self._left.values() if not message.is_refused]
        count, behind = len(messages), sum(not message.is_failing for message in messages)
        if not self.is_over or behind == count:
            return ""
        queues = list(dict.fromkeys(message.queue for message in messages))
        retentions = dict.fromkeys(coarse(self._retention(queue)) for queue in queues)
        left = "the message that is left" if count == 1 else f"the {count} messages that are left"
        failed = f"failed {MOST_FAILURES} deliveries in a row"
        if behind:
            failed += f" or wait behind one that did ({behind})"
        has, these = ("has", queues[0]) if len(queues) == 1 else ("have", "each")
        return (
            f"Stopped: {left} {failed}, and {', '.join(queues)} {has} no redrive policy. On AWS, Lambda would retry "
            f"until SQS deletes {'it' if count == 1 else 'them'} at the end of the retention "
            f"({', '.join(retentions)}). Give {these} a RedrivePolicy with a dead-letter queue."
        )

    def _sent(self, fields: Mapping[str, Any]) -> None:
        if fields["queue"] in self._consumed:
            self._left[fields["delivery_id"]] = _Message(fields["queue"], fields.get("group"))

    def _logged(self, fields: Mapping[str, Any]) -> None:
        if fields["event"] == "unhandled":
            self._unhandled.add(fields["delivery_id"])

    def _answered(self, fields: Mapping[str, Any]) -> None:
        is_tarry = self._running.pop(fields["request_id"], False)
        for delivery_id in fields["failed"]:
            if (message := self._left.get(delivery_id)) is not None:
                counts = delivery_id in self._unhandled or not is_tarry
                self._failing -= message.is_failing
                message.is_refused = fields.get("kind") == "recursive"
                message.failures = message.failures + 1 if counts else 0
                self._failing += message.is_failing
        self._unhandled.difference_update(fields["failed"])

    def _ended(self, fields: Mapping[str, Any]) -> None:
        message = self._left.pop(fields["delivery_id"], None)
        self._failing -= message is not None and message.is_failing

    def _has_redrive(self, queue: str) -> bool:
        return redrive_of(self._attributes.get(queue, {})) is not None

    def _retention(self, queue: str) -> float:
        return float(self._attributes.get(queue, {}).get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS))


@dataclass(frozen=True)
class VirtualRun:
    """A finished run. ``began`` is in virtual epoch seconds; ``problem`` is why it ended too early, if it did."""

    report: RunReport
    output: Sequence[OutputLine]
    began: float
    problem: str = ""
    stories: Sequence[Story] = ()
    """The stories of its messages."""


def play(plan: RunPlan, settings: RunSettings, note: Note) -> VirtualRun:
    """Run the plan to its end.

    Raises `UsageError` if a resource cannot be created, a handler cannot be imported, or a message cannot be sent.
    """
    if not plan.samples:
        return VirtualRun(RunReport(expected=settings.expected), [], 0)
    with (
        Sandbox(region=plan.template.region) as sandbox,
        _surroundings(plan.template, sandbox, note) as services,
        ExitStack() as stack,
    ):
        stack.enter_context(passing_time(sandbox._simulation.actors))  # before handlers import what they wait with
        endless, loops = EndlessFailures(), RecursiveLoops()
        sandbox.history.listen(endless.take)
        sandbox.history.listen(loops.take)
        transcript = Transcript(lambda: sandbox.now)
        targets = InvokableFunctions(plan.template, settings, sandbox, transcript.hint)
        invoker = sandbox._invoker(targets.find, transcript.hint)
        stack.enter_context(simulated_clients(sandbox.client, virtual_invoke(invoker, sandbox._simulation.actors)))
        sandbox.history.listen(transcript.warn)
        with logging_to(transcript, verbose=settings.verbose):  # before imports: Powertools adapts its loggers to it
            mappings = _assemble(sandbox, plan, settings, targets, transcript, note)
            make_calls(settings.seed, services.url, plan.template.region, sandbox.sqs.call)
            numbers = _send(sandbox, plan, note)
            problem, interrupted = _let_happen(sandbox, settings, transcript, endless, loops)
        found = sandbox.report()
        messages = messages_of(found, numbers, {mapping.queue for mapping in mappings})
        waits = Waits(sandbox.now - sandbox.elapsed, is_real=False)
        gave_up = settings.give_up_seconds is not None and not interrupted
        report = RunReport(
            messages=messages,
            dead_letters=dead_letters_of(messages, sandbox.sqs, sandbox.now),
            interrupted=interrupted,
            virtual_seconds=_seconds(messages, sandbox),
            waits=waits.for_messages(messages, loops.stuck) if gave_up else "",
            causes=[
                *loops.texts(is_cut=settings.give_up_seconds is None),
                *filter(None, [endless.text]),
                *(waits.for_calls(invoker.pending) if gave_up else ()),
            ],
            violations=[] if problem or interrupted else found.violations,
            expected=settings.expected,
            left=keep(settings.keep, sandbox.sqs, plan.template, sandbox.now) if settings.keep is not None else "",
        )
        return VirtualRun(
            report,
            transcript.lines,
            sandbox.now - sandbox.elapsed,
            problem,
            [*stories_of(found, "tarry local --skip-time (virtual time)")],
        )


def _seconds(messages: Sequence[MessageTimeline], sandbox: Sandbox) -> float:
    """The virtual time until the last step; the whole run, if a message has not settled."""
    ended = [step.at for message in messages for step in message.steps]
    is_over = ended and all(message.is_settled for message in messages)
    return max(ended) - (sandbox.now - sandbox.elapsed) if is_over else sandbox.elapsed


@contextmanager
def _surroundings(template: Template, sandbox: Sandbox, note: Note) -> Iterator[Services]:
    """Isolate the run from AWS. Services beside SQS are those of moto, in virtual time."""

    def call(operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        # In a thread of moto, while the function that called moto waits: nothing else runs.
        return sandbox.sqs.called_by("http", operation, parameters)

    def refuse(function: str, kind: str, payload: bytes) -> InvokeAnswer:
        return invoke_error(
            400, "InvalidRuntimeException", "With --skip-time, functions can be invoked only through boto3."
        )

    services = Services(call, refuse, note, now=lambda: sandbox.now)
    sandbox._simulation.actors.is_excused = lambda: services.is_starting
    try:
        with isolated_from_aws(template.region, services.url):
            if template.backing:
                services.start(", ".join(template.backing))
            yield services
    finally:
        services.close()


class InvokableFunctions:
    """The functions of a template, for code that invokes them. ``resources`` have the values of their variables."""

    def __init__(self, template: Template, settings: RunSettings, sandbox: Sandbox, note: Note) -> None:
        self._template = template
        self._settings = settings
        self._sandbox = sandbox
        self._note = note
        self.resources: Resources | None = None

    def find(self, name: str) -> InvokeTarget:
        """Return a function by its name. Raises `UnknownFunction`."""
        function = self._template.functions.get(name)
        if function is None or self.resources is None:
            raise UnknownFunction(f"Function not found: the template has no function {name}")
        if problem := missing_code(function):
            raise UnknownFunction(f"{name} is not run here: {problem}")
        if not self._settings.is_strict:
            self._template = with_placeholders(self._template, [name], self._settings.overrides, self._note)
        try:
            function = self._template.functions[name]
            variables = self.resources.environment(function, self._settings.overrides.of(function))
        except (UsageError, TemplateError) as error:
            raise UnknownFunction(f"{name} is not run here: {error}") from error
        return target_of(function, self._sandbox._host(function, variables))


def _assemble(
    sandbox: Sandbox,
    plan: RunPlan,
    settings: RunSettings,
    targets: InvokableFunctions,
    transcript: Transcript,
    note: Note,
) -> list[TemplateMapping]:
    """Create the resources of the template; return the mappings that feed functions here."""
    template = plan.template
    resources = Resources(template, {name: sandbox.sqs.url(name) for name in with_foreign_queues(template)})
    targets.resources = resources
    for text in resources.problems:
        note(text)
    environment: dict[str, dict[str, str]] = {}
    mappings = []
    for mapping in plan.all_mappings:
        function = template.functions[mapping.function]
        try:
            environment[function.name] = resources.environment(function, settings.overrides.of(function))
        except (UsageError, TemplateError) as error:
            if mapping in plan.mappings:
                raise
            note(f"{function.logical_id} is left out: {error}")
            continue
        mappings.append(mapping)
    try:
        here = replace(template, mappings=tuple(mappings), queues=with_foreign_queues(template))
        sandbox.add_template(here, environment=environment)
        with redirect_stdout(transcript):  # a logger that is made at import writes there during the run
            for mapping in plan.mappings:
                sandbox.module(mapping.function)
    except CodeError as error:
        raise UsageError(str(error), error.details) from error
    except (ClientError, InvalidParameterValue) as error:
        raise UsageError(f"{template.path}: AWS refuses {error}") from error
    return mappings


def _send(sandbox: Sandbox, plan: RunPlan, note: Note) -> dict[str, int]:
    """Put the records in their queues, in the order of the event; return their numbers by delivery id."""
    queues = with_foreign_queues(plan.template)
    numbers: dict[str, int] = {}
    for sample in plan.samples:
        try:
            request = sample.request(queues[sample.queue], sandbox.sqs.url(sample.queue))
            message_id = sandbox.sqs.call("SendMessage", request)["MessageId"]
        except SqsError as error:
            raise UsageError(f"SQS refuses record {sample.number}: {error.message}") from error
        if message_id in numbers:
            note(f"SQS drops record {sample.number} as a duplicate: its deduplication id was sent before.")
        numbers.setdefault(message_id, sample.number)
    return numbers


def _let_happen(
    sandbox: Sandbox, settings: RunSettings, transcript: Transcript, endless: EndlessFailures, loops: RecursiveLoops
) -> tuple[str, bool]:
    """Run until the sandbox comes to rest, messages only fail until they expire, or a function loops for ever.

    Return the problem that ended the run early, and whether it was Ctrl-C.
    """
    seconds = settings.give_up_seconds
    with transcript.recording():
        try:
            sandbox.run(lambda: endless.is_over or (seconds is None and loops.is_endless), for_=seconds, check=False)
            if seconds is not None and not endless.is_over:
                sandbox.advance(max(0.0, seconds - sandbox.elapsed))
        except SimulationError as error:
            return str(error), False
        except CodeError as error:
            raise UsageError(str(error), error.details) from error
        except KeyboardInterrupt:
            return "", True
    return "", False


# the output of functions during the run
