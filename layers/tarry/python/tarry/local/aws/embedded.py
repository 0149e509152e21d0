"""The embedded SQS of a local cloud: the model in this process, served to the functions over HTTP."""

from collections.abc import Iterable, Mapping
from typing import Any

from tarry.simulator.client import SimulatedClient
from tarry.simulator.mapping_settings import MappingSettings
from tarry.simulator.scheduler import Scheduler
from tarry.simulator.sqs import Sqs, SqsError
from tarry.simulator.sqs.message_store import Depth
from tarry.simulator.sqs_port import SqsPort
from tarry.template import TemplateQueue
from tarry.template.queues import make_queues
from tarry.testing.assembly import at_once
from tarry.tooling.errors import UsageError
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
        client = SimulatedClient(self.model, WallClock(), at_once)
        try:
            self.urls = make_queues(client, self._queues)
        except client.exceptions.ClientError as error:
            raise UsageError(f"SQS refuses a queue of the template: {error}") from error
        self.arns = {name: self.model.arn(name) for name in self.urls}

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
