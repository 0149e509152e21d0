"""The embedded SQS of a local cloud: the model in this process, served to the functions over HTTP."""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.simulator.client import SimulatedClient, SqsPort
from tarry.tools.simulator.history import History
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.simulator.sqs import Sqs, SqsError
from tarry.tools.simulator.sqs.message_store import Depth
from tarry.tools.template import TemplateQueue
from tarry.tools.template.model import make_queues
from tarry.tools.template.resources import QUEUE_ATTRIBUTES
from tarry.tools.testing.assembly import at_once
from tarry.world import WallClock


class EmbeddedSqs:
    """The embedded SQS, with the queues of the template."""

    def __init__(self, model: Sqs, scheduler: Scheduler, queues: Iterable[TemplateQueue]) -> None:
        self.model = model
        self._scheduler = scheduler
        self._queues = list(queues)
        self.urls: dict[str, str] = {}
        self.arns: dict[str, str] = {}

    async def ready(self) -> None:
        """Create the queues.

        Raises:
            UsageError: SQS would refuse a queue.
        """
        self.urls = _make(self.model, self._queues)
        self.arns = {name: self.model.arn(name) for name in self.urls}

    async def check(self, queues: Iterable[TemplateQueue]) -> dict[str, str]:
        """Return the URLs that these queues have or will have.

        Raises:
            UsageError: SQS would refuse a queue.
        """
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
        """Send a message; return its id.

        Raises:
            UsageError: SQS refuses the message.
        """
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
