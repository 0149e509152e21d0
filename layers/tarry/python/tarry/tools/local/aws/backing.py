"""The AWS services beside SQS that the functions of a local cloud use, and the variables that name their resources."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.tools.local.aws.client import isolated_from_aws
from tarry.tools.local.aws.services import Services
from tarry.tools.local.seeding import make_calls
from tarry.tools.template.variables import variables_of
from tarry.tools.testing.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from tarry.tools.local.aws.services import Invoke
    from tarry.tools.local.functions.variables import Overrides
    from tarry.tools.local.seeding import SeedCall
    from tarry.tools.simulator.http.admission import Admission
    from tarry.tools.simulator.sqs import Sqs
    from tarry.tools.template import Template, TemplateFunction
    from tarry.tools.testing.moto_relay import Call

ANSWER_SECONDS = 10.0


def on_loop(model: Sqs, loop: asyncio.AbstractEventLoop) -> Call:
    """Return a function that calls the model on its loop, for the threads of moto."""

    def call(operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer: Future[dict[str, Any]] = Future()

        def run() -> None:
            try:
                answer.set_result(model.called_by("http", operation, parameters))
            except Exception as error:  # noqa: BLE001 raised in the thread that waits
                answer.set_exception(error)

        loop.call_soon_threadsafe(run)
        return answer.result(ANSWER_SECONDS)

    return call


class EmbeddedBacking:
    """The services in this process. moto starts for a template with tables, buckets or topics, or when it is called.

    ``url`` is their endpoint URL. ``stack`` ends them. Made on the running loop.
    """

    def __init__(
        self,
        model: Sqs,
        given: Overrides,
        region: str,
        stack: AsyncExitStack,
        note: Callable[[str], None],
        invoke: Invoke,
        *,
        admission: Admission,
    ) -> None:
        loop = asyncio.get_running_loop()
        port = int(model.endpoint_url.rpartition(":")[2]) + 1

        def note_later(text: str) -> None:
            loop.call_soon_threadsafe(note, text)

        self._call = on_loop(model, loop)
        self._services = Services(
            self._call, invoke, note_later, sqs_url=model.endpoint_url, port=port, admission=admission
        )
        self.url: str | None = self._services.url
        stack.push_async_callback(loop.run_in_executor, None, self._services.close)
        stack.enter_context(isolated_from_aws(region, self._services.url))  # moto makes boto3 clients itself
        model.other_services = self.url
        self._given = given
        self._resources: Resources | None = None

    async def update(self, template: Template, urls: Mapping[str, str]) -> list[str]:
        """Create the resources of a template that do not exist yet; return notes about those that are not as in it.

        Raises:
            UsageError: a resource cannot be created, or moto is not installed.
        """
        loop = asyncio.get_running_loop()
        if template.backing:
            await loop.run_in_executor(None, self._services.start, ", ".join(template.backing))
        make = partial(Resources, template, urls, self._resources)
        self._resources = await loop.run_in_executor(None, make)
        unchanged = [f"{name} stays as it was until you restart tarry local." for name in self._resources.unchanged]
        return [*unchanged, *self._resources.problems]

    async def seed(self, calls: Sequence[SeedCall], region: str) -> None:
        """Make the calls of a seed file. Raises `UsageError` if one is refused."""
        make = partial(make_calls, calls, self._services.url, region, self._call)
        await asyncio.get_running_loop().run_in_executor(None, make)

    def environment(self, function: TemplateFunction) -> dict[str, str]:
        """Return the environment variables of a function, resolved, with the overrides of ``--env``.

        Raises:
            UsageError: a value refers to a resource that `tarry local` does not create.
            TemplateError: a value cannot be resolved.
        """
        assert self._resources is not None
        return self._resources.environment(function, self._given.of(function))


class ForeignBacking:
    """The services at the endpoint of another SQS, where the resources are expected to exist."""

    url: str | None = None
    """The endpoint URL of the other services; None if it is that of SQS."""

    def __init__(self, given: Overrides) -> None:
        self._given = given
        self._template: Template
        self._urls: Mapping[str, str] = {}

    async def update(self, template: Template, urls: Mapping[str, str]) -> list[str]:
        """Use the names of another template."""
        self._template, self._urls = template, urls
        return []

    def environment(self, function: TemplateFunction) -> dict[str, str]:
        """Return the environment variables of a function. Raises `TemplateError` if one cannot be resolved."""
        return variables_of(function, self._template, self._urls, self._given.of(function))
