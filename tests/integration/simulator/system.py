"""A queue with its dead-letter queue, a function, and the mapping between them, in virtual time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tarry.tools.simulator.client import SimulatedClient, SqsPort
from tarry.tools.simulator.functions import Function, Handler
from tarry.tools.simulator.history import History
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.simulator.sqs import Realism, Sqs
from tarry.tools.template import TemplateFunction, TemplateMapping
from tarry.world import World

VISIBILITY, TIMEOUT = 180, 30


class System:
    """One consumer of one queue."""

    def __init__(
        self,
        handler: Handler,
        queue: str = "orders",
        seed: int = 1,
        realism: Realism | None = None,
        max_receive_count: int = 100,
        concurrency: int = 1_000,
        **mapping: Any,
    ) -> None:
        self.simulation = Simulation()
        self.now = self.simulation.clock.time
        self.history = History(self.now)
        self.random = Random(seed)
        self.sqs = Sqs(self.now, self.random, self.history, realism=realism or Realism())
        self.queue = queue
        self.dead = queue.replace("orders", "orders-dead")
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if queue.endswith(".fifo") else {}
        self.call("CreateQueue", QueueName=self.dead, Attributes=fifo)
        redrive = json.dumps({"deadLetterTargetArn": self.sqs.arn(self.dead), "maxReceiveCount": max_receive_count})
        attributes = {**fifo, "VisibilityTimeout": str(VISIBILITY), "RedrivePolicy": redrive}
        self.call("CreateQueue", QueueName=queue, Attributes=attributes)
        settings = TemplateFunction("", "handle-orders", "", None, None, TIMEOUT, reserved_concurrency=concurrency)
        self.function = Function(self.simulation, handler, self.world, self.history, settings)
        mapped = TemplateMapping("", self.sqs.arn(queue), "handle-orders", reports_failures=True, **mapping)
        mapping_settings = MappingSettings(mapped, VISIBILITY, TIMEOUT)
        scheduler = self.simulation.scheduler
        port = SqsPort(scheduler, self.sqs, mapping_settings)
        self.mapping = EventSourceMapping(scheduler, port, self.function, self.history, mapping_settings)
        self.mapping.start()
        self.began = self.now()

    def world(self) -> World:
        clock, threads = self.simulation.clock, self.simulation.threads
        return World(clock, self.random, lambda: SimulatedClient(self.sqs, clock), threads)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self.sqs.call(operation, parameters)

    def send(self, body: Any, group: str | None = None, **parameters: Any) -> str:
        if group is not None:
            parameters["MessageGroupId"] = group
        answer = self.call("SendMessage", QueueUrl=self.sqs.url(self.queue), MessageBody=json.dumps(body), **parameters)
        return str(answer["MessageId"])

    def run(self) -> float:
        """Run until no action is left; return the elapsed virtual seconds."""
        self.simulation.scheduler.run()
        return self.now() - self.began

    def recorded(self, what: str) -> list[dict[str, Any]]:
        return [{"at": event.at - self.began, **event.fields} for event in self.history.events if event.what == what]


@contextmanager
def system(handler: Handler, **settings: Any) -> Iterator[System]:
    sut = System(handler, **settings)
    try:
        yield sut
    finally:
        sut.simulation.close()
