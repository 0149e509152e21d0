"""The local cloud: SQS, other AWS resources, function processes, and the mappings between them."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any
from uuid import uuid4

from tarry.failed.text import one_line
from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import sqs_client
from tarry.tools.local.aws.foreign import ForeignSqs
from tarry.tools.local.aws.services import EmbeddedSqs
from tarry.tools.local.functions.code import CannotImport, Endpoints, FunctionCode, variables_of
from tarry.tools.local.functions.host import ProcessFunction
from tarry.tools.local.functions.runtime import Launcher
from tarry.tools.local.plan import RunPlan, RunSettings, invokable, settings_of
from tarry.tools.local.project import Note
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.http.server import PortTaken, serve
from tarry.tools.simulator.lambda_invoke import Invoker, InvokeTarget
from tarry.tools.simulator.lambda_mappings import LambdaMappings
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs
from tarry.tools.template import TemplateError, TemplateFunction, TemplateMapping
from tarry.tools.template.model import with_foreign_queues
from tarry.tools.testing.guarding import Guarding, guards_in
from tarry.world import current

_log = logging.getLogger(__name__)

CHANGE_SECONDS = 1.0
"""How long the change of a mapping takes; Lambda needs up to a minute."""
SETTLE_SECONDS = 1.0
"""The interval at which the SQS model expires messages."""


@dataclass
class LocalCloud:
    """A running local cloud. ``url`` is the endpoint of SQS. Its parts change when the template is changed."""

    url: str
    plan: RunPlan
    settings: RunSettings
    sqs: EmbeddedSqs | ForeignSqs
    scheduler: AsyncioScheduler
    history: History
    launcher: Launcher
    lineage: Lineage | None = None
    """Detects recursive loops; None with another SQS, which does not tell who sends a message."""
    functions: dict[str, ProcessFunction] = field(default_factory=dict)
    """By name."""
    mappings: dict[str, EventSourceMapping] = field(default_factory=dict)
    """By logical id."""
    invoker: Invoker | None = None
    """Invokes functions for the code of others; None with another SQS."""
    is_started: bool = False
    _removed: list[ProcessFunction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lambda_mappings = LambdaMappings(self.mappings.values(), lambda: CHANGE_SECONDS)

    @property
    def consumed(self) -> list[str]:
        """The queues whose messages a function gets."""
        return list(dict.fromkeys(each.queue for each in self.plan.all_mappings if each.logical_id in self.mappings))

    def start(self) -> None:
        """Start the event source mappings."""
        self.is_started = True
        for mapping in self.mappings.values():
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

    def code_of(self, function: TemplateFunction) -> FunctionCode:
        """Return the code of a function. Raises `UsageError` or `TemplateError` if a variable cannot be resolved."""
        endpoints = Endpoints(self.url, self.sqs.others, is_foreign=isinstance(self.sqs, ForeignSqs))
        own = self.sqs.environment(function, self.settings.overrides.of(function))
        if guards_in(self.plan.template):
            own = {"POWERTOOLS_METRICS_DISABLED": "false", **own}
        return FunctionCode(function, variables_of(function, own, endpoints))

    def codes_of(self, plan: RunPlan, note: Note) -> dict[str, FunctionCode]:
        """Return the code of the functions of a plan by name; note those that it does not need, and that cannot run.

        Raises `UsageError` or `TemplateError` if a variable of another one cannot be resolved.
        """
        needed, codes = {mapping.function for mapping in plan.mappings}, {}
        for function in plan.functions:
            try:
                codes[function.name] = self.code_of(function)
            except (UsageError, TemplateError) as error:
                if function.name in needed:
                    raise
                note(f"{function.logical_id} is not run: {error}")
        return codes

    def host(self, code: FunctionCode) -> ProcessFunction:
        """Make the host of a function; no process is started."""
        on_broken = partial(self.show_broken, code.function.name) if self.settings.watch else None
        host = ProcessFunction(
            code.function, code.variables, self.history, self.launcher, on_broken=on_broken, lineage=self.lineage
        )

        def limit(invocations: int | None) -> None:
            for each in self.mappings.values():
                if each.mapping.function == code.function.name:
                    each.limit_to(invocations)

        host.on_limit = limit
        return host

    def target(self, name: str) -> InvokeTarget:
        """Return a function that code invokes. Raises `UnknownFunction`."""
        make = lambda function: self.host(self.code_of(function))  # noqa: E731 used once
        return invokable(name, self.plan.template, self.settings, self.functions, make, self.note)

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
        if self.is_started:
            mapping.start()


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine within the context; if it fails, the context is cancelled and raises its exception."""
    task, owner = asyncio.create_task(work), asyncio.current_task()

    def ended(task: asyncio.Task[None]) -> None:
        if owner is not None and not task.cancelled() and task.exception() is not None:
            owner.cancel()

    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


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
        history.listen(partial(show, on_event, omits_metrics=bool(guards_in(plan.template))))
        asyncio.get_running_loop().set_exception_handler(partial(_bug, history))
        sqs, url = await _sqs(plan, settings, scheduler, history, stack)
        await sqs.ready()
        launcher = Launcher()
        stack.callback(launcher.close)
        cloud = LocalCloud(url, plan, settings, sqs, scheduler, history, launcher)
        if isinstance(sqs, EmbeddedSqs):
            call = partial(sqs.model.called_by, "http")
            sqs.invoker = cloud.invoker = Invoker(scheduler, cloud.target, call, lambda: str(uuid4()), cloud.note)
            sqs.model.event_source_mappings = cloud.lambda_mappings.answer
            show_state = lambda event: cloud.note("{queue} -> {function}: {state}".format_map(event.fields), "bold")  # noqa: E731
            history.listen(show_state, "mapping_changed")
            cloud.lineage = Lineage(history)
        for text in await sqs.make_resources(plan.template, sqs.urls):
            note(text)
        if isinstance(sqs, EmbeddedSqs) and settings.seed:
            await sqs.seed(settings.seed, plan.template.region)
        stack.push_async_callback(cloud.close)  # before they start: if one cannot, the others are ended
        await _start_functions(cloud, note)
        for mapping in plan.all_mappings:
            if mapping.function in cloud.functions:
                cloud.connect(mapping.logical_id, cloud.mapping_settings(mapping, plan))
        if isinstance(sqs, EmbeddedSqs):
            for function in guards_in(plan.template):
                variables = sqs.environment(function, settings.overrides.of(function))
                Guarding(variables, scheduler, sqs.model, cloud.lambda_mappings, current())
                history.listen(lambda act: cloud.note("{consumer}: {phase}: {why}".format_map(act.fields)), "guarded")
            await stack.enter_async_context(in_background(_settling(sqs)))
        yield cloud


def show(on_event: Callable[[HistoryEvent], None], event: HistoryEvent, *, omits_metrics: bool = False) -> None:
    """Take an event. A bug of the display must not fail the request to SQS that made the event."""
    if omits_metrics and event.what == "logged" and "_aws" in (event.fields["fields"] or ()):
        return
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
    """Return the SQS, with the other services, and its endpoint URL. Nothing of moto runs before it is needed."""

    def note(text: str) -> None:
        history.record("noted", text=text, style="yellow")

    if settings.endpoint_url is not None:
        queues, client = with_foreign_queues(plan.template).values(), sqs_client(settings.endpoint_url)
        foreign = ForeignSqs(client, queues, scheduler, history, note)
        stack.push_async_callback(foreign.close)
        return foreign, settings.endpoint_url
    model = Sqs(lambda: scheduler.now, Random(), history, region=plan.template.region)
    try:
        serving = serve(model, scheduler, port=settings.port or 0, admission=settings.admission)
        url = await stack.enter_async_context(serving)
    except PortTaken as error:
        raise UsageError(f"{error}: is tarry local already running? Use --port for another port") from error
    return EmbeddedSqs(model, scheduler, plan.template, settings.admission, note, stack), url


async def _start_functions(cloud: LocalCloud, note: Note) -> None:
    """Start the functions, each with one process that has imported its handler.

    Leave out a function that does not work if the plan does not need it, and one in Node.js whose packages are not
    installed, unless it was named or the event needs it, or no function is left.
    """
    plan, functions = cloud.plan, cloud.functions
    needed = {mapping.function for mapping in plan.mappings}
    functions |= {name: cloud.host(code) for name, code in cloud.codes_of(plan, note).items()}
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
