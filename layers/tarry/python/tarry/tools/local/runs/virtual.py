"""One run in virtual time: the template's queues and functions in a sandbox, where waits take no time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from tarry.failed.text import coarse
from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import isolated_from_aws
from tarry.tools.local.aws.services import Services, with_qualifier
from tarry.tools.local.plan import RunPlan, RunSettings, invokable
from tarry.tools.local.project import Note
from tarry.tools.local.runs.printing import Transcript, logging_to
from tarry.tools.local.runs.report import RunReport, Waits, dead_letters_of, keep, messages_of
from tarry.tools.local.samples import make_calls
from tarry.tools.local.show.timeline import LogLine, RecursiveLoops
from tarry.tools.simulator.actors import SimulationError, VirtualEvent
from tarry.tools.simulator.client import simulated_clients
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.simulator.invocations import FunctionHost
from tarry.tools.simulator.lambda_invoke import InvokeAnswer, Invoker, InvokeTarget, invoke_error
from tarry.tools.simulator.mapping_settings import InvalidParameterValue
from tarry.tools.simulator.passing_time import passing_time
from tarry.tools.simulator.simulation import Actors
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.story.events import Story
from tarry.tools.template import Template, TemplateError, TemplateFunction, TemplateMapping
from tarry.tools.template.model import DEFAULT_RETENTION_SECONDS, with_foreign_queues
from tarry.tools.testing.report import stories_of
from tarry.tools.testing.resources import Resources
from tarry.tools.testing.sandbox import Sandbox

MOST_FAILURES = 10
"""The deliveries in a row that a message must fail before it counts as failing without end."""


@dataclass
class _Message:
    """A message in a queue that feeds a function, and the number of deliveries in a row that failed."""

    queue: str
    group: str | None
    failures: int = 0
    is_refused: bool = False
    """Whether Lambda refuses to invoke its function, which sends to its own queue: see `RecursiveLoops`."""

    @property
    def is_failing(self) -> bool:
        return self.failures >= MOST_FAILURES or self.is_refused


class EndlessFailures(RecursiveLoops):
    """A listener to a history that also tells when only the retention of messages can end their failures.

    A failure of a consumer of tarry counts once the consumer has nothing left to do with the message (``unhandled``);
    until then its own retries may help.
    """

    def __init__(self) -> None:
        super().__init__()
        self._consumed: set[str] = set()
        self._left: dict[str, _Message] = {}
        self._failing = 0
        """The number of messages left that fail without end."""
        self._running: dict[str, bool] = {}
        """The invocations under way by request id, and whether a consumer of tarry runs in them."""
        self._unhandled: set[str] = set()

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        super().take(event)
        fields = event.fields
        match event.what:
            case "connected":
                self._consumed.add(fields["queue"])
            case "sent" if (queue := fields["queue"]) in self._consumed:
                group = fields.get("group") if queue.endswith(".fifo") else None
                self._left[fields["delivery_id"]] = _Message(queue, group)
            case "invoked" | "consumed":
                self._running[fields["request_id"]] = event.what == "consumed"
            case "transition_logged" if fields["event"] == "unhandled":
                self._unhandled.add(fields["delivery_id"])
            case "answered":
                self._answered(fields)
            case "deleted" | "expired" | "purged" | "moved":
                message = self._left.pop(fields["delivery_id"], None)
                self._failing -= message is not None and message.is_failing

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

    @property
    def is_over(self) -> bool:
        """Whether every message that is left fails without end, or waits behind one in its FIFO group."""
        if not self._failing or self._running:
            return False
        failing = [message for message in self._left.values() if message.is_failing]
        if any(self.has_redrive(message.queue) for message in failing):
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
        known = (self.attributes.get(queue, {}).get("MessageRetentionPeriod") for queue in queues)
        retentions = dict.fromkeys(coarse(float(each or DEFAULT_RETENTION_SECONDS)) for each in known)
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


@dataclass(frozen=True)
class VirtualRun:
    """A finished run. ``began`` is in virtual epoch seconds; ``problem`` is why it ended too early, if it did."""

    report: RunReport
    output: Sequence[LogLine]
    began: float
    problem: str = ""
    stories: Sequence[Story] = ()


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
        endless = EndlessFailures()
        sandbox.history.listen(endless.take)
        transcript = Transcript(lambda: sandbox.now)
        template, hosts = plan.template, dict[str, FunctionHost]()
        resources = Resources(template, {name: sandbox.sqs.url(name) for name in with_foreign_queues(template)})
        for text in resources.problems:
            note(text)

        def variables(function: TemplateFunction) -> dict[str, str]:
            return resources.environment(function, settings.overrides.of(function))

        def target(name: str) -> InvokeTarget:
            make = lambda function: sandbox._host(function, variables(function))  # noqa: E731 used once
            return invokable(name, template, settings, hosts, make, transcript.hint)

        invoker = sandbox._invoker(target, transcript.hint)
        stack.enter_context(simulated_clients(sandbox.client, virtual_invoke(invoker, sandbox._simulation.actors)))
        sandbox.history.listen(transcript.warn)
        with logging_to(transcript, verbose=settings.verbose):  # before imports: Powertools adapts its loggers to it
            mappings = _assemble(sandbox, plan, variables, transcript, note)
            make_calls(settings.seed, services.url, template.region, sandbox.sqs.call)
            numbers = _send(sandbox, plan, note)
            problem, interrupted = _let_happen(sandbox, settings, transcript, endless)
        found = sandbox.report()
        messages = messages_of(found, numbers, {mapping.queue for mapping in mappings})
        began = sandbox.now - sandbox.elapsed
        waits = Waits(began, is_real=False)
        ended = [step.at for message in messages for step in message.steps]
        is_over = bool(ended) and all(message.is_settled for message in messages)
        gave_up = settings.give_up_seconds is not None and not interrupted
        report = RunReport(
            messages=messages,
            dead_letters=dead_letters_of(messages, sandbox.sqs, sandbox.now),
            interrupted=interrupted,
            virtual_seconds=max(ended) - began if is_over else sandbox.elapsed,
            waits=waits.for_messages(messages, endless.stuck) if gave_up else "",
            causes=[
                *endless.texts(is_cut=settings.give_up_seconds is None),
                *filter(None, [endless.text]),
                *(waits.for_calls(invoker.pending) if gave_up else ()),
            ],
            violations=[] if problem or interrupted else found.violations,
            expected=settings.expected,
            left=keep(settings.keep, sandbox.sqs, template, sandbox.now) if settings.keep is not None else "",
        )
        stories = [*stories_of(found, "tarry local --skip-time (virtual time)")]
        return VirtualRun(report, transcript.lines, began, problem, stories)


@contextmanager
def _surroundings(template: Template, sandbox: Sandbox, note: Note) -> Iterator[Services]:
    """Isolate the run from AWS. Services beside SQS are those of moto, in virtual time."""

    def refuse(function: str, kind: str, payload: bytes) -> InvokeAnswer:
        return invoke_error(
            400, "InvalidRuntimeException", "With --skip-time, functions can be invoked only through boto3."
        )

    # SQS is called in a thread of moto, while the function that called moto waits: nothing else runs.
    services = Services(partial(sandbox.sqs.called_by, "http"), refuse, note, now=lambda: sandbox.now)
    sandbox._simulation.actors.is_excused = lambda: services.is_starting
    try:
        with isolated_from_aws(template.region, services.url):
            if template.backing:
                services.start(", ".join(template.backing))
            yield services
    finally:
        services.close()


def _assemble(
    sandbox: Sandbox,
    plan: RunPlan,
    variables: Callable[[TemplateFunction], dict[str, str]],
    transcript: Transcript,
    note: Note,
) -> list[TemplateMapping]:
    """Create the queues and functions of the template; return the mappings that feed functions here."""
    template = plan.template
    environment: dict[str, dict[str, str]] = {}
    mappings = []
    for mapping in plan.all_mappings:
        function = template.functions[mapping.function]
        try:
            environment[function.name] = variables(function)
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
    sandbox: Sandbox, settings: RunSettings, transcript: Transcript, endless: EndlessFailures
) -> tuple[str, bool]:
    """Run until the sandbox comes to rest, messages only fail until they expire, or a function loops for ever.

    Return the problem that ended the run early, and whether it was Ctrl-C.
    """
    seconds = settings.give_up_seconds
    with transcript.recording():
        try:
            sandbox.run(lambda: endless.is_over or (seconds is None and endless.is_endless), for_=seconds, check=False)
            if seconds is not None and not endless.is_over:
                sandbox.advance(max(0.0, seconds - sandbox.elapsed))
        except SimulationError as error:
            return str(error), False
        except KeyboardInterrupt:
            return "", True
    return "", False


def virtual_invoke(invoker: Invoker, actors: Actors) -> Callable[..., AWSResponse]:
    """Return a handler of botocore's event ``before-send.lambda.Invoke`` that answers it in virtual time.

    A request over HTTP would block the thread of the caller, and with it the time in which the function runs.
    """

    def before_send(request: Any, **_: Any) -> AWSResponse:
        answers: list[InvokeAnswer] = []
        is_done = VirtualEvent(actors)

        def done(answer: InvokeAnswer) -> None:
            answers.append(answer)
            is_done.set()

        url = urlsplit(request.url)
        function = with_qualifier(unquote(url.path.split("/")[3]), url.query)
        kind = request.headers.get("X-Amz-Invocation-Type", "RequestResponse")
        kind = kind.decode() if isinstance(kind, bytes) else kind
        body = request.body or b""
        invoker.invoke(function, kind, body if isinstance(body, bytes) else body.read(), done)
        is_done.wait()
        [answer] = answers
        headers: Any = dict(answer.headers)
        return AWSResponse(request.url, answer.status, headers, _Raw(answer.body))

    return before_send


class _Raw(BytesIO):
    """The body of a response, as botocore reads it."""

    def stream(self, *_: Any, **__: Any) -> Any:
        yield self.read()
