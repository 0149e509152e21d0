"""A template's system, running on this machine: its queues, what its functions need beside them, its functions, fed."""

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
from tarry.local.aws.resources import Resources, moto_for
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
from tarry.tooling.errors import UsageError

Resolve = Callable[[TemplateFunction], Mapping[str, str]]
"""A function's own environment variables, with what they refer to and what ``--env`` gives.

Raises `UsageError` or `TemplateError`.
"""

SETTLE_SECONDS = 1.0
"""How often what time does to messages that nobody looks at (it expires them) is done."""


@dataclass(frozen=True)
class Cloud:
    """What runs. ``url`` is where SQS answers."""

    url: str
    plan: RunPlan
    sqs: EmbeddedSqs | ForeignSqs
    timeline: AsyncioScheduler
    history: History
    functions: Mapping[str, ProcessFunction]
    """By name."""
    mappings: Sequence[EventSourceMapping]

    def start(self) -> None:
        """Let the queues feed the functions."""
        for mapping in self.mappings:
            mapping.start()

    def stop(self) -> None:
        """Receive no more messages."""
        for mapping in self.mappings:
            mapping.stop()


@asynccontextmanager
async def running(
    plan: RunPlan, settings: RunSettings, hear: Callable[[HistoryEvent], None], note: Note
) -> AsyncIterator[Cloud]:
    """A cloud on the running loop, for as long as the context lasts. Whatever ends it, nothing of it is left.

    Its queues feed nobody before it is told to `start`.

    Args:
        plan: What is to run.
        settings: How.
        hear: Gets all that happens, as it does.
        note: Told what is worth knowing before anything happens.

    Raises:
        UsageError: the port is taken, a queue or a table cannot be made, a variable not be resolved, a handler not be
            imported. No message has been received then.
    """
    async with AsyncExitStack() as stack:
        timeline = AsyncioScheduler()
        stack.callback(timeline.close)
        history = History(lambda: timeline.now, keep=False)
        history.listen(hear)
        asyncio.get_running_loop().set_exception_handler(partial(_bug, history))
        sqs, url = await _sqs(plan, settings, timeline, history, stack)
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
        mappings = _mappings(plan, sqs, timeline, history, functions)
        cloud = Cloud(url, plan, sqs, timeline, history, functions, mappings)
        stack.callback(cloud.stop)
        if isinstance(sqs, EmbeddedSqs):
            await stack.enter_async_context(in_background(_settling(sqs)))
        if settings.watch:
            await stack.enter_async_context(in_background(_watching(functions, history)))
        yield cloud


def _bug(history: History, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a callback raised, where it is seen: the screen has the terminal."""
    error = context.get("exception")
    told = "".join(traceback.format_exception(error)).rstrip() if isinstance(error, Exception) else ""
    history.record("noted", text=f"a bug of tarry local: {context['message']}\n{told}".rstrip(), style="red")


async def _sqs(
    plan: RunPlan, settings: RunSettings, timeline: AsyncioScheduler, history: History, stack: AsyncExitStack
) -> tuple[EmbeddedSqs | ForeignSqs, str]:
    """The SQS, and where it answers."""
    queues = with_foreign_queues(plan.template).values()
    if settings.endpoint_url is not None:
        client = sqs_client(settings.endpoint_url)
        foreign = ForeignSqs(client, queues, timeline, history, lambda text: history.record("noted", text=text))
        stack.push_async_callback(foreign.close)
        return foreign, settings.endpoint_url
    model = Sqs(lambda: timeline.now, Random(), history, region=plan.template.region)
    try:
        url = await stack.enter_async_context(serve(model, timeline, port=settings.port or 0))
    except PortTaken as error:
        raise UsageError(f"{error}: is tarry local running already? --port takes another port") from error
    return EmbeddedSqs(model, timeline, queues), url


async def _variables(
    plan: RunPlan, given: Overrides, sqs: EmbeddedSqs | ForeignSqs, stack: AsyncExitStack
) -> tuple[Resolve, str | None]:
    """What fills in the functions' own variables, and where AWS's services beside SQS are, if that is elsewhere.

    The template's tables, buckets and topics are made in moto, which is slow to start and asked nothing else. Beside
    another SQS the rest of AWS is taken to be there too: what is named there is not made.
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
    stack.enter_context(isolated_from_aws(template.region, url))  # moto itself makes clients of boto3
    resources = await loop.run_in_executor(None, Resources, template, sqs.urls)
    return lambda function: resources.environment(function, given.of(function)), url


async def _functions(
    plan: RunPlan,
    resolve: Resolve,
    finish: Callable[[TemplateFunction, Mapping[str, str]], ProcessFunction],
    note: Note,
) -> dict[str, ProcessFunction]:
    """The functions, each with one process that has imported its handler.

    Those that the plan can do without are left out if they do not work.
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
            note(f"{function.logical_id} is left out: {error}")
    for name, problem in zip(list(functions), await _warmed(functions.values()), strict=True):
        if isinstance(problem, UsageError) and name not in needed:
            note(f"{functions.pop(name).function.logical_id} is left out: {problem}")
        elif problem is not None:
            raise problem
    return functions


async def _warmed(functions: Iterable[ProcessFunction]) -> list[BaseException | None]:
    return await asyncio.gather(*(function.warm() for function in functions), return_exceptions=True)


def _mappings(
    plan: RunPlan,
    sqs: EmbeddedSqs | ForeignSqs,
    timeline: AsyncioScheduler,
    history: History,
    functions: Mapping[str, ProcessFunction],
) -> list[EventSourceMapping]:
    mappings = []
    for mapping in plan.all_mappings:
        if mapping.function in functions:
            settings = settings_of(mapping, plan.template)
            settings = replace(settings, queue_arn=sqs.arns[mapping.queue])
            host = functions[mapping.function]
            mappings.append(EventSourceMapping(timeline, sqs.port(settings), host, history, settings))
    return mappings


async def _settling(sqs: EmbeddedSqs) -> None:
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        sqs.model.catch_up()


async def _watching(functions: Mapping[str, ProcessFunction], history: History) -> None:
    def changed(name: str, files: list[str]) -> None:
        functions[name].restart()
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        history.record("noted", text=f"{name}: {files[0]}{more} changed: it is loaded anew", style="cyan")

    await watch({name: _directory(host.function) for name, host in functions.items()}, changed)


def _directory(function: TemplateFunction) -> Path:
    assert function.code is not None
    return function.code
