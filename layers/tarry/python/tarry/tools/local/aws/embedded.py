"""The embedded SQS of a local cloud, served to the functions over HTTP, and the AWS services beside it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import isolated_from_aws
from tarry.tools.local.aws.services import Services
from tarry.tools.local.seeding import make_calls
from tarry.tools.simulator.client import SimulatedClient, SqsPort
from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Sqs, SqsError
from tarry.tools.template.model import make_queues
from tarry.tools.template.resources import QUEUE_ATTRIBUTES
from tarry.tools.testing.hosting import at_once
from tarry.tools.testing.resources import Resources
from tarry.world import WallClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from tarry.tools.local.aws.services import Invoke
    from tarry.tools.local.functions.variables import Overrides
    from tarry.tools.local.seeding import SeedCall
    from tarry.tools.simulator.http.admission import Admission
    from tarry.tools.simulator.mapping_settings import MappingSettings
    from tarry.tools.simulator.scheduler import Scheduler
    from tarry.tools.simulator.sqs import Depth
    from tarry.tools.template import Template, TemplateFunction, TemplateQueue
    from tarry.tools.testing.moto_relay import Call


class EmbeddedSqs:
    """The embedded SQS, with the queues of the template."""

    def __init__(self, model: Sqs, scheduler: Scheduler, queues: Iterable[TemplateQueue]) -> None:
        self.model = model
        self._scheduler = scheduler
        self._queues = list(queues)
        self.urls: dict[str, str] = {}
        self.arns: dict[str, str] = {}

    async def ready(self) -> None:
        """Create the queues. Raises `UsageError` if SQS would refuse a queue."""
        self.urls = _make(self.model, self._queues)
        self.arns = {name: self.model.arn(name) for name in self.urls}

    async def check(self, queues: Iterable[TemplateQueue]) -> dict[str, str]:
        """Return the URLs that these queues have or will have. Raises `UsageError` if SQS would refuse a queue."""
        _make(self._scratch(), queues)
        return {queue.name: self.model.url(queue.name) for queue in queues}

    async def update(self, queues: Iterable[TemplateQueue]) -> list[str]:
        """Create the queues that are missing, and change the attributes of those that the template changed.

        Queues that are not among them stay. Return notes about what could not be changed.
        """
        before, self._queues = {queue.name: queue for queue in self._queues}, list(queues)
        wanted = self._scratch()
        _make(wanted, self._queues)
        created = [queue for queue in self._queues if queue.name not in self.model.queues()]
        for queue in created:
            parameters = {"QueueName": queue.name, "Attributes": dict(queue.attributes)}
            self.model.call("CreateQueue", parameters)
        for queue in self._queues:
            self.urls[queue.name], self.arns[queue.name] = self.model.url(queue.name), self.model.arn(queue.name)
            if before.get(queue.name) != queue:
                attributes = _settings(wanted, queue.name)
                if not attributes.items() <= _settings(self.model, queue.name).items():
                    request = {"QueueUrl": self.urls[queue.name], "Attributes": attributes}
                    self.model.call("SetQueueAttributes", request)
        return []

    def _scratch(self) -> Sqs:
        """Make an SQS without queues, to try a template with."""
        return Sqs(lambda: self._scheduler.now, Random(), History(lambda: 0.0, keep=False), region=self.model.region)

    def port(self, settings: MappingSettings) -> SqsPort:
        """Return the access of a mapping to its queue."""
        return SqsPort(self._scheduler, self.model, settings)

    async def send(self, request: Mapping[str, Any]) -> str:
        """Send a message; return its id. Raises `UsageError` if SQS refuses the message."""
        try:
            return str(self.model.call("SendMessage", request)["MessageId"])
        except SqsError as error:
            raise UsageError(error.message) from error

    def depths(self) -> dict[str, Depth]:
        """Return the numbers of messages of each queue."""
        return {name: self.model.depth(name) for name in self.model.queues()}


def _make(model: Sqs, queues: Iterable[TemplateQueue]) -> dict[str, str]:
    client = SimulatedClient(model, WallClock(), at_once)
    try:
        return make_queues(client, queues)
    except client.exceptions.ClientError as error:
        raise UsageError(f"SQS refuses a queue of the template: {error}") from error


def _settings(model: Sqs, queue: str) -> dict[str, str]:
    """Return all attributes of a queue that a template can change, with their defaults."""
    request = {"QueueUrl": model.url(queue), "AttributeNames": ["All"]}
    found = model.call("GetQueueAttributes", request)["Attributes"]
    attributes = {name: found[name] for name in QUEUE_ATTRIBUTES if name in found and name != "FifoQueue"}
    return {**attributes, "RedrivePolicy": found.get("RedrivePolicy", "")}


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

        Raises `UsageError` if a resource cannot be created, or moto is not installed.
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

        Raises `UsageError` if a value refers to a resource that `tarry local` does not create, `TemplateError` if a
        value cannot be resolved.
        """
        assert self._resources is not None
        return self._resources.environment(function, self._given.of(function))
