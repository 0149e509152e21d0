"""The local cloud: SQS, other AWS resources, function processes, and the mappings between them."""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from tarry.failed.text import one_line
from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import sqs_client
from tarry.tools.local.aws.embedded import EmbeddedBacking, EmbeddedSqs
from tarry.tools.local.aws.foreign import ForeignBacking, ForeignSqs
from tarry.tools.local.aws.invoking import Invoking, target_of
from tarry.tools.local.background import in_background
from tarry.tools.local.functions.code import CannotImport, FunctionCode
from tarry.tools.local.functions.host import ProcessFunction
from tarry.tools.local.functions.launcher import Launcher
from tarry.tools.local.functions.variables import Endpoints, variables_of
from tarry.tools.local.plan import RunPlan, RunSettings, settings_of
from tarry.tools.local.project import Note, with_placeholders
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.http import PortTaken, serve
from tarry.tools.simulator.lambda_invoke import Invoker, InvokeTarget, UnknownFunction
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs
from tarry.tools.template import Template, TemplateError, TemplateFunction, TemplateMapping
from tarry.tools.template.code import missing_code
from tarry.tools.template.model import with_foreign_queues

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tarry.tools.simulator.mapping_settings import MappingSettings

Answer = tuple[int, dict[str, Any]]
"""A status of HTTP, and the body."""


def answer_event_source_mappings(
    cloud: LocalCloud, method: str, uuid: str, query: Mapping[str, str], body: Mapping[str, Any]
) -> Answer:
    """Answer a request for ``/2015-03-31/event-source-mappings/UUID``, on the loop of the cloud.

    A mapping changes at once, and only its state: batches that its function already has run to their end.
    """
    if method == "GET" and not uuid:
        wanted = query.get("EventSourceArn"), query.get("FunctionName")
        return 200, {"EventSourceMappings": [each for each in _all(cloud).values() if _is_of(each, *wanted, cloud)]}
    logical_id = next((name for name, each in _all(cloud).items() if each["UUID"] == uuid), None)
    if logical_id is None:
        return 404, {"Type": "User", "Message": "The resource you requested does not exist."}
    if method == "PUT" and "Enabled" in body:
        cloud.enable(logical_id, enabled=bool(body["Enabled"]))
    return 202 if method == "PUT" else 200, _all(cloud)[logical_id]


def _all(cloud: LocalCloud) -> dict[str, dict[str, Any]]:
    """Return the mappings as Lambda describes them, by their logical ids."""
    functions = cloud.plan.template.functions
    return {
        logical_id: {
            "UUID": str(uuid5(NAMESPACE_URL, logical_id)),
            "EventSourceArn": each.mapping.queue_arn,
            "FunctionArn": ":".join(filter(None, [functions[each.mapping.function].arn, each.mapping.qualifier])),
            "State": "Disabled" if logical_id in cloud.paused else "Enabled",
            "BatchSize": each.mapping.batch_size,
        }
        for logical_id, each in cloud.mappings.items()
    }


def _is_of(described: Mapping[str, Any], queue_arn: str | None, function: str | None, cloud: LocalCloud) -> bool:
    """Whether a mapping is of a queue and a function; the function is named by name, ARN or logical id."""
    name = str(described["FunctionArn"]).split(":")[6]
    found = cloud.plan.template.functions[name]
    return queue_arn in {None, described["EventSourceArn"]} and function in {None, name, found.arn, found.logical_id}


_log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
"""The interval at which the SQS model expires messages."""


@dataclass
class LocalCloud:
    """A running local cloud. ``url`` is the endpoint of SQS. Its parts change when the template is changed."""

    url: str
    plan: RunPlan
    settings: RunSettings
    sqs: EmbeddedSqs | ForeignSqs
    backing: EmbeddedBacking | ForeignBacking
    scheduler: AsyncioScheduler
    history: History
    launcher: Launcher
    lineage: Lineage | None = None
    """Detects recursive loops; None with another SQS, which does not tell who sends a message."""
    functions: dict[str, ProcessFunction] = field(default_factory=dict)
    """By name."""
    mappings: dict[str, EventSourceMapping] = field(default_factory=dict)
    """By logical id."""
    paused: set[str] = field(default_factory=set)
    """The logical ids of the mappings that `tarry pause` has disabled."""
    invoker: Invoker | None = None
    """Invokes functions for the code of others; None with another SQS."""
    is_started: bool = False
    _removed: list[ProcessFunction] = field(default_factory=list)

    @property
    def consumed(self) -> list[str]:
        """The queues whose messages a function gets."""
        return list(dict.fromkeys(each.queue for each in self.plan.all_mappings if each.logical_id in self.mappings))

    def start(self) -> None:
        """Start the event source mappings."""
        self.is_started = True
        for logical_id, mapping in self.mappings.items():
            if logical_id not in self.paused:
                mapping.start()

    def stop(self) -> None:
        """Stop the event source mappings: no more messages are received."""
        self.is_started = False
        for mapping in self.mappings.values():
            mapping.stop()

    async def close(self) -> None:
        """Stop, and end all processes."""
        self.stop()
        await asyncio.gather(*(function.close() for function in [*self.functions.values(), *self._removed]))

    def note(self, text: str, style: str = "yellow") -> None:
        """Show a text on the screen."""
        self.history.record("noted", text=text, style=style)

    # functions

    async def update_backing(self, template: Template, urls: Mapping[str, str]) -> list[str]:
        """Create the resources of a template; return notes about those that cannot be changed. Raises `UsageError`."""
        return await self.backing.update(template, urls)

    def code_of(self, function: TemplateFunction) -> FunctionCode:
        """Return the code of a function. Raises `UsageError` or `TemplateError` if a variable cannot be resolved."""
        endpoints = Endpoints(self.url, self.backing.url, is_foreign=isinstance(self.sqs, ForeignSqs))
        return FunctionCode(function, variables_of(function, self.backing.environment(function), endpoints))

    def host(self, code: FunctionCode) -> ProcessFunction:
        """Make the host of a function; no process is started."""
        on_broken = partial(self.show_broken, code.function.name) if self.settings.watch else None
        host = ProcessFunction(
            code.function, code.variables, self.history, self.launcher, on_broken=on_broken, lineage=self.lineage
        )
        host.on_limit = partial(self._limit, code.function.name)
        return host

    def make_invoker(self, sqs: EmbeddedSqs) -> Invoker:
        """Make the invoker of the template's functions."""
        call = partial(sqs.model.called_by, "http")
        return Invoker(self.scheduler, self._target, call, lambda: str(uuid4()), self.note)

    def _target(self, name: str) -> InvokeTarget:
        function = self.plan.template.functions.get(name)
        if function is None:
            raise UnknownFunction(f"Function not found: the template has no function {name}")
        if name not in self.functions:
            if problem := missing_code(function):
                raise UnknownFunction(f"{name} is not run here: {problem}")
            try:
                self.functions[name] = self.host(self.code_of(self._filled(name)))
            except (UsageError, TemplateError) as error:
                raise UnknownFunction(f"{name} is not run here: {error}") from error
        return target_of(function, self.functions[name])

    def _filled(self, name: str) -> TemplateFunction:
        """Return a function that is invoked by code, with its placeholders: those of consumers are in the plan."""
        template, settings = self.plan.template, self.settings
        if not settings.is_strict:
            template = with_placeholders(template, [name], settings.overrides, self.note)
        return template.functions[name]

    def remove(self, function: str) -> None:
        """Remove a function that no mapping invokes any more; its current invocations end first."""
        host = self.functions.pop(function)
        host.retire()
        self._removed.append(host)

    def show_broken(self, function: str, error: UsageError) -> None:
        """Show why a function cannot be imported, and what happens to its messages."""
        host = self.functions[function]
        has_queue = any(mapping.function == function for mapping in self.plan.all_mappings)
        waits = "its messages wait in their queue" if has_queue else "its invocations are throttled"
        goes_on = "the code from before keeps running" if host.limit else waits
        frames, problem = error.details, str(error)
        if isinstance(error, CannotImport):
            frames, problem = error.frames, f"{host.function.logical_id} cannot be imported: {one_line(error.why)}"
        self.note(f"{frames}\n{problem}; {goes_on} until a save can be imported.".lstrip("\n"), "red")

    def _limit(self, function: str, limit: int | None) -> None:
        for mapping in self.mappings.values():
            if mapping.mapping.function == function:
                mapping.limit_to(limit)

    # mappings

    def mapping_settings(self, mapping: TemplateMapping, plan: RunPlan) -> MappingSettings:
        """Return the settings of a mapping, with the queue of this SQS."""
        return settings_of(replace(mapping, queue_arn=self.sqs.arns[mapping.queue]), plan.template)

    def connect(self, logical_id: str, settings: MappingSettings) -> None:
        """Make a mapping; it receives messages if the others do."""
        host = self.functions[settings.mapping.function]
        mapping = EventSourceMapping(self.scheduler, self.sqs.port(settings), host, self.history, settings)
        mapping.limit_to(host.limit)
        self.mappings[logical_id] = mapping
        self.paused.discard(logical_id)  # as a deployment that changes it
        if self.is_started:
            mapping.start()

    def enable(self, logical_id: str, *, enabled: bool) -> None:
        """Let a mapping receive messages again, or stop it."""
        mapping = self.mappings[logical_id]
        if enabled != (logical_id in self.paused):
            return
        name = self.plan.template.functions[mapping.mapping.function].logical_id
        queue = mapping.mapping.queue
        if enabled:
            self.paused.remove(logical_id)
            self.note(f"{name} was resumed: it gets the messages of {queue} again.", "bold")
            if self.is_started:
                mapping.start()
        else:
            self.paused.add(logical_id)
            mapping.stop()
            self.note(f"{name} was paused: messages of {queue} wait in their queue until tarry resume.", "bold")


@asynccontextmanager
async def running(
    plan: RunPlan, settings: RunSettings, on_event: Callable[[HistoryEvent], None], note: Note
) -> AsyncIterator[LocalCloud]:
    """Run a local cloud on the running loop within the context. However the context ends, everything is cleaned up.

    No messages are received until you call `LocalCloud.start`.

    ``on_event`` is called with each event of the history, ``note`` with hints for the developer, before anything runs.
    Raises `UsageError` if the port is in use, a queue or a table cannot be created, a variable cannot be resolved, or a
    handler cannot be imported. No message has been received then.
    """
    async with AsyncExitStack() as stack:
        scheduler = AsyncioScheduler()
        stack.callback(scheduler.close)
        history = History(lambda: scheduler.now, keep=False)
        history.listen(partial(show, on_event))
        asyncio.get_running_loop().set_exception_handler(partial(_bug, history))
        sqs, url = await _sqs(plan, settings, scheduler, history, stack)
        await sqs.ready()
        invoking = Invoking(asyncio.get_running_loop())
        backing = _backing(sqs, plan, settings, history, stack, invoking)
        launcher = Launcher()
        stack.callback(launcher.close)
        cloud = LocalCloud(url, plan, settings, sqs, backing, scheduler, history, launcher)
        if isinstance(sqs, EmbeddedSqs):
            invoking.invoker = cloud.invoker = cloud.make_invoker(sqs)
            sqs.model.event_source_mappings = partial(answer_event_source_mappings, cloud)
            cloud.lineage = Lineage(history)
        for text in await cloud.update_backing(plan.template, sqs.urls):
            note(text)
        if isinstance(backing, EmbeddedBacking) and settings.seed:
            await backing.seed(settings.seed, plan.template.region)
        stack.push_async_callback(cloud.close)
        await _start_functions(cloud, note)
        for mapping in plan.all_mappings:
            if mapping.function in cloud.functions:
                cloud.connect(mapping.logical_id, cloud.mapping_settings(mapping, plan))
        if isinstance(sqs, EmbeddedSqs):
            await stack.enter_async_context(in_background(_settling(sqs)))
        yield cloud


def show(on_event: Callable[[HistoryEvent], None], event: HistoryEvent) -> None:
    """Take an event. A bug of the display must not fail the request to SQS that made the event."""
    try:
        on_event(event)
    except Exception:  # noqa: BLE001 logged
        _log.exception("a bug in the display of tarry local; the queues are not affected")


def _bug(history: History, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Record an exception of a callback in the history, where the screen shows it."""
    error = context.get("exception")
    details = "".join(traceback.format_exception(error)).rstrip() if isinstance(error, Exception) else ""
    history.record("noted", text=f"a bug in tarry local: {context['message']}\n{details}".rstrip(), style="red")


async def _sqs(
    plan: RunPlan, settings: RunSettings, scheduler: AsyncioScheduler, history: History, stack: AsyncExitStack
) -> tuple[EmbeddedSqs | ForeignSqs, str]:
    """Return the SQS and its endpoint URL."""
    queues = with_foreign_queues(plan.template).values()
    if settings.endpoint_url is not None:
        client = sqs_client(settings.endpoint_url)
        foreign = ForeignSqs(client, queues, scheduler, history, lambda text: history.record("noted", text=text))
        stack.push_async_callback(foreign.close)
        return foreign, settings.endpoint_url
    model = Sqs(lambda: scheduler.now, Random(), history, region=plan.template.region)
    try:
        serving = serve(model, scheduler, port=settings.port or 0, admission=settings.admission)
        url = await stack.enter_async_context(serving)
    except PortTaken as error:
        raise UsageError(f"{error}: is tarry local already running? Use --port for another port") from error
    return EmbeddedSqs(model, scheduler, queues), url


def _backing(
    sqs: EmbeddedSqs | ForeignSqs,
    plan: RunPlan,
    settings: RunSettings,
    history: History,
    stack: AsyncExitStack,
    invoking: Invoking,
) -> EmbeddedBacking | ForeignBacking:
    """Return the other services; nothing of them runs before they are needed."""
    if isinstance(sqs, ForeignSqs):
        return ForeignBacking(settings.overrides)

    def note(text: str) -> None:
        history.record("noted", text=text, style="yellow")

    region, admission = plan.template.region, settings.admission
    return EmbeddedBacking(sqs.model, settings.overrides, region, stack, note, invoking, admission=admission)


async def _start_functions(cloud: LocalCloud, note: Note) -> None:
    """Start the functions, each with one process that has imported its handler.

    Leave out a function that does not work if the plan does not need it, and one in Node.js whose packages are not
    installed, unless it was named or the event needs it, or no function is left.
    """
    plan, functions = cloud.plan, cloud.functions
    needed = {mapping.function for mapping in plan.mappings}
    for name in dict.fromkeys(mapping.function for mapping in plan.all_mappings):
        function = plan.template.functions[name]
        try:
            functions[name] = cloud.host(cloud.code_of(function))
        except (UsageError, TemplateError) as error:
            if name in needed:
                raise
            note(f"{function.logical_id} is not run: {error}")
    started = await asyncio.gather(*(host.warm() for host in functions.values()), return_exceptions=True)
    is_open = not cloud.settings.functions and cloud.settings.event is None and None in started
    for name, problem in zip(list(functions), started, strict=True):
        if isinstance(problem, CannotImport) and problem.is_not_installed and (is_open or name not in needed):
            queues = " and ".join(mapping.queue for mapping in plan.all_mappings if mapping.function == name)
            note(f"{queues} is served, but {functions.pop(name).function.logical_id} is not run here: {problem.why}")
        elif isinstance(problem, UsageError) and name not in needed:
            note(f"{functions.pop(name).function.logical_id} is not run: {problem}")
        elif problem is not None:
            raise problem


async def _settling(sqs: EmbeddedSqs) -> None:
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        sqs.model.catch_up()
