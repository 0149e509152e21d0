"""Real AWS: an account and a region, with the stack of template.yaml in it."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.facts.worlds.world import Need, World

LOOK_SECONDS = 3
PATIENCE_SECONDS = 90
"""The figures of a queue are right about a minute after it has come to rest; moved messages take seconds."""
NEW_QUEUE_SECONDS = 1
"""Before a new queue may be used."""
STATE_SECONDS = 180
"""That a mapping may take to be made, or to be ready to be deleted."""
PAUSE_SECONDS = 2


@dataclass(frozen=True)
class Stack:
    """The deployed stack, and the clients of its region. Time is real but in tests."""

    name: str
    outputs: dict[str, str]
    sqs: Any
    functions: Any
    """Lambda's."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def find(cls, name: str) -> "Stack":
        """The stack of this name, where boto3's usual settings point to."""
        import boto3

        [stack] = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}
        return cls(name, outputs, boto3.client("sqs"), boto3.client("lambda"))

    @staticmethod
    def prefix_of(name: str) -> str:
        """How the names of all queues begin that the probes make; the function may use those alone."""
        return f"{name}-probe-"

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        """A world for one probe. What it makes is deleted, whatever happens."""
        world = AwsWorld(self)
        try:
            yield world
        finally:
            for mapping_id in world.mappings:
                with contextlib.suppress(BotoCoreError, ClientError):  # the next sweep finds it
                    self.delete_mapping(mapping_id)
            for url in world.queues:
                with contextlib.suppress(BotoCoreError, ClientError):
                    self.delete_queue(url)

    def sweep(self) -> None:
        """Delete what a run has left that was killed."""
        for function in (self.outputs["Function"], self.outputs["ThrottledFunction"]):
            for page in self.functions.get_paginator("list_event_source_mappings").paginate(FunctionName=function):
                for mapping in page["EventSourceMappings"]:
                    self.delete_mapping(mapping["UUID"])
        for page in self.sqs.get_paginator("list_queues").paginate(QueueNamePrefix=self.prefix_of(self.name)):
            for url in page.get("QueueUrls", []):
                self.delete_queue(url)

    def delete_queue(self, url: str) -> None:
        with contextlib.suppress(self.sqs.exceptions.QueueDoesNotExist):
            self.sqs.delete_queue(QueueUrl=url)

    def delete_mapping(self, mapping_id: str) -> None:
        """Lambda refuses it while it is still making or changing the mapping."""
        ends_at = self.now() + STATE_SECONDS
        with contextlib.suppress(self.functions.exceptions.ResourceNotFoundException):
            while self.state(mapping_id) in {"Creating", "Enabling", "Updating"} and self.now() < ends_at:
                self.sleep(PAUSE_SECONDS)
            if self.state(mapping_id) != "Deleting":
                self.functions.delete_event_source_mapping(UUID=mapping_id)

    def state(self, mapping_id: str) -> str:
        state: str = self.functions.get_event_source_mapping(UUID=mapping_id)["State"]
        return state


class AwsWorld(World):
    has: frozenset[Need] = frozenset({"mapping", "loop detection", "in-flight limit"})
    patience_seconds = PATIENCE_SECONDS
    look_seconds = LOOK_SECONDS

    def __init__(self, stack: Stack) -> None:
        prefix = f"{stack.prefix_of(stack.name)}{uuid.uuid4().hex[:8]}-"
        super().__init__(stack.sqs, prefix, stack.outputs["JournalUrl"])
        self.mappings: list[str] = []
        self._stack = stack

    def now(self) -> float:
        return self._stack.now()

    def wait(self, seconds: float) -> None:
        self._stack.sleep(seconds)

    def queue(self, *, fifo: bool = False, **attributes: Any) -> str:
        url = super().queue(fifo=fifo, **attributes)
        self.wait(NEW_QUEUE_SECONDS)
        return url

    def connect(self, url: str, *, throttled: bool = False, **settings: Any) -> None:
        function = self._stack.outputs["ThrottledFunction" if throttled else "Function"]
        made = self._stack.functions.create_event_source_mapping(
            EventSourceArn=self.arn(url), FunctionName=function, **settings
        )
        self.mappings.append(made["UUID"])
        self.until(lambda: self._stack.state(made["UUID"]) == "Enabled", STATE_SECONDS)
