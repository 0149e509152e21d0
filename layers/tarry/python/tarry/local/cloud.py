"""The local cloud: SQS, other AWS resources, function processes, and the mappings between them."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tarry.local.aws.client import sqs_client
from tarry.local.aws.embedded import EmbeddedSqs
from tarry.local.aws.foreign import ForeignSqs
from tarry.local.aws.isolation import isolated_from_aws
from tarry.local.background import in_background, watch
from tarry.local.functions.host import ProcessFunction
from tarry.local.functions.launcher import Launcher
from tarry.local.functions.variables import Endpoints, Overrides, variables_of
from tarry.local.plan import Note, RunPlan, RunSettings, settings_of
from tarry.simulator.asyncio_scheduler import AsyncioScheduler
from tarry.simulator.history import History, HistoryEvent
from tarry.simulator.http import PortTaken, serve
from tarry.simulator.mapping import EventSourceMapping
from tarry.simulator.sqs import Sqs
from tarry.template import TemplateError, TemplateFunction
from tarry.template.queues import with_foreign_queues
from tarry.template.variables import variables_of as own_variables_of
from tarry.testing.resources import Resources, moto_for
from tarry.tooling.errors import UsageError

Resolve = Callable[[TemplateFunction], Mapping[str, str]]
"""Return the environment variables of a function, resolved, with the overrides of ``--env``.

Raises `UsageError` or `TemplateError`.
"""

SETTLE_SECONDS = 1.0
"""The interval at which the SQS model expires messages."""


@dataclass(frozen=True)
class LocalCloud:
    """A running local cloud. ``url`` is the endpoint of SQS."""

    url: str
    plan: RunPlan
    sqs: EmbeddedSqs | ForeignSqs
    scheduler: AsyncioScheduler
    history: History
    functions: Mapping[str, ProcessFunction]
    """By name."""
    mappings: Sequence[EventSourceMapping]

    def start(self) -> None:
        """Start the event source mappings."""
        for mapping in self.mappings:
            mapping.start()

    def stop(self) -> None:
        """Stop the event source mappings: no more messages are received."""
        for mapping in self.mappings:
            mapping.stop()


@asynccontextmanager
async def running(
    plan: RunPlan, settings: RunSettings, on_event: Callable[[HistoryEvent], None], note: Note
) -> AsyncIterator[LocalCloud]:
    """Run a local cloud on the running loop within the context. However the context ends, everything is cleaned up.

    No messages are received until you call `LocalCloud.start`.

    Args:
        plan: The queues and functions to run.
        settings: The settings of the run.
        on_event: Called with each event of the history.
        note: Called with hints for the developer, before anything runs.

    Raises:
        UsageError: the port is in use, a queue or a table cannot be created, a variable cannot be resolved, or a
            handler cannot be imported. No message has been received.
    """
    async with AsyncExitStack() as stack:
        scheduler = AsyncioScheduler()
        stack.callback(scheduler.close)
        history = History(lambda: scheduler.now, keep=False)
        history.listen(on_event)
        asyncio.get_running_loop().set_exception_handler(partial(_bug, history))
        sqs, url = await _sqs(plan, settings, scheduler, history, stack)
        await sqs.ready()
        resolve, others = await _variables(plan, settings.overrides, sqs, stack)
        endpoints = Endpoints(sqs=url, others=others, is_foreign=isinstance(sqs, ForeignSqs))
        launcher = Launcher()
        stack.callback(launcher.close)

        def host(function: TemplateFunction, own: Mapping[str, str]) -> ProcessFunction:
            variables = variables_of(function, own, endpoints)
            made = ProcessFunction(function, variables, history, launcher)
            stack.push_async_callback(made.close)
            return made

        functions = await _functions(plan, resolve, host, note)
        mappings = _mappings(plan, sqs, scheduler, history, functions)
        cloud = LocalCloud(url, plan, sqs, scheduler, history, functions, mappings)
        stack.callback(cloud.stop)
        if isinstance(sqs, EmbeddedSqs):
            await stack.enter_async_context(in_background(_settling(sqs)))
        if settings.watch:
            await stack.enter_async_context(in_background(_watching(functions, history)))
        yield cloud


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
        url = await stack.enter_async_context(serve(model, scheduler, port=settings.port or 0))
    except PortTaken as error:
        raise UsageError(f"{error}: is tarry local already running? Use --port for another port") from error
    return EmbeddedSqs(model, scheduler, queues), url


async def _variables(
    plan: RunPlan, given: Overrides, sqs: EmbeddedSqs | ForeignSqs, stack: AsyncExitStack
) -> tuple[Resolve, str | None]:
    """Return the resolver of variables, and the endpoint URL of the other AWS services; None if it is that of SQS.

    The tables, buckets and topics of the template are created in moto, which is started only for them. With
    ``--endpoint-url``, they are expected to exist at that endpoint.
    """
    template, loop = plan.template, asyncio.get_running_loop()
    if isinstance(sqs, ForeignSqs):
        return lambda function: own_variables_of(function, template, sqs.urls, given.of(function)), None
    if not template.backing:
        resources = Resources(template, sqs.urls)
        return lambda function: resources.environment(function, given.of(function)), None
    moto = moto_for(template)
    url = await loop.run_in_executor(None, moto.__enter__)
    stack.push_async_callback(loop.run_in_executor, None, moto.__exit__, None, None, None)
    stack.enter_context(isolated_from_aws(template.region, url))  # moto makes boto3 clients itself
    resources = await loop.run_in_executor(None, Resources, template, sqs.urls)
    return lambda function: resources.environment(function, given.of(function)), url


async def _functions(
    plan: RunPlan,
    resolve: Resolve,
    finish: Callable[[TemplateFunction, Mapping[str, str]], ProcessFunction],
    note: Note,
) -> dict[str, ProcessFunction]:
    """Return the functions by name, each with one process that has imported its handler.

    Leave out a function that does not work if the plan does not need it.
    """
    needed = {mapping.function for mapping in plan.mappings}
    functions: dict[str, ProcessFunction] = {}
    for name in dict.fromkeys(mapping.function for mapping in plan.all_mappings):
        function = plan.template.functions[name]
        try:
            functions[name] = finish(function, resolve(function))
        except (UsageError, TemplateError) as error:
            if name in needed:
                raise
            note(f"{function.logical_id} is not run: {error}")
    for name, problem in zip(list(functions), await _warmed(functions.values()), strict=True):
        if isinstance(problem, UsageError) and name not in needed:
            note(f"{functions.pop(name).function.logical_id} is not run: {problem}")
        elif problem is not None:
            raise problem
    return functions


async def _warmed(functions: Iterable[ProcessFunction]) -> list[BaseException | None]:
    return await asyncio.gather(*(function.warm() for function in functions), return_exceptions=True)


def _mappings(
    plan: RunPlan,
    sqs: EmbeddedSqs | ForeignSqs,
    scheduler: AsyncioScheduler,
    history: History,
    functions: Mapping[str, ProcessFunction],
) -> list[EventSourceMapping]:
    mappings = []
    for mapping in plan.all_mappings:
        if mapping.function in functions:
            settings = settings_of(mapping, plan.template)
            settings = replace(settings, queue_arn=sqs.arns[mapping.queue])
            host = functions[mapping.function]
            mappings.append(EventSourceMapping(scheduler, sqs.port(settings), host, history, settings))
    return mappings


async def _settling(sqs: EmbeddedSqs) -> None:
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        sqs.model.catch_up()


async def _watching(functions: Mapping[str, ProcessFunction], history: History) -> None:
    def changed(name: str, files: list[str]) -> None:
        functions[name].restart()
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        history.record("noted", text=f"{name}: {files[0]}{more} changed, function restarts", style="cyan")

    await watch({name: _directory(host.function) for name, host in functions.items()}, changed)


def _directory(function: TemplateFunction) -> Path:
    assert function.code is not None
    return function.code
