"""Real AWS: an account and a region with the stack of template.yaml."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.facts.platforms.platform import Need, Platform

LONG_POLL_SECONDS = 3
PATIENCE_SECONDS = 90
"""The numbers of messages of a queue are right about a minute after the last change; moved messages take seconds."""
NEW_QUEUE_SECONDS = 1
"""The wait before a new queue may be used."""
STATE_SECONDS = 180
"""The longest wait until a mapping is created, or can be deleted."""
PAUSE_SECONDS = 2


@dataclass(frozen=True)
class Stack:
    """The deployed stack, and the clients of its region. Tests replace ``now`` and ``sleep``."""

    name: str
    outputs: dict[str, str]
    sqs: Any
    functions: Any
    """The Lambda client."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def find(cls, name: str) -> "Stack":
        """Find a stack by name, with boto3's default session."""
        import boto3

        [stack] = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}
        return cls(name, outputs, boto3.client("sqs"), boto3.client("lambda"))

    @staticmethod
    def prefix_of(name: str) -> str:
        """Return the prefix of the names of all queues of the probes; the function may only access these."""
        return f"{name}-probe-"

    @contextlib.contextmanager
    def platform(self) -> Iterator[Platform]:
        """Make a platform for one probe; delete its mappings and queues afterwards."""
        platform = AwsPlatform(self)
        try:
            yield platform
        finally:
            for mapping_id in platform.mappings:
                with contextlib.suppress(BotoCoreError, ClientError):  # left to the next sweep
                    self.delete_mapping(mapping_id)
            for url in platform.queues:
                with contextlib.suppress(BotoCoreError, ClientError):
                    self.delete_queue(url)

    def sweep(self) -> None:
        """Delete mappings and queues that a killed run has left."""
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
        """Delete a mapping. Lambda refuses that while it creates or updates the mapping, so wait until it is done."""
        ends_at = self.now() + STATE_SECONDS
        with contextlib.suppress(self.functions.exceptions.ResourceNotFoundException):
            while self.state(mapping_id) in {"Creating", "Enabling", "Updating"} and self.now() < ends_at:
                self.sleep(PAUSE_SECONDS)
            if self.state(mapping_id) != "Deleting":
                self.functions.delete_event_source_mapping(UUID=mapping_id)

    def state(self, mapping_id: str) -> str:
        state: str = self.functions.get_event_source_mapping(UUID=mapping_id)["State"]
        return state


class AwsPlatform(Platform):
    has: frozenset[Need] = frozenset({"mapping", "loop detection", "in-flight limit"})
    patience_seconds = PATIENCE_SECONDS
    long_poll_seconds = LONG_POLL_SECONDS

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
