"""A served SQS with dead letters, and the commands `tarry failed` and `tarry console` as processes."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command import Command, Terminal, running
from tests.processes import PATIENCE_SECONDS
from tests.served import Served, served
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn


class ServedShop:
    """A served SQS with dead letters, and the command as a process."""

    def __init__(self, sqs: Served, folder: Path) -> None:
        self.sqs = sqs
        self.folder = folder
        self._terminals: list[Terminal] = []
        sqs.queue("orders-dlq")
        sqs.queue("orders", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15}))
        self.where = ["--queue", "orders-dlq", "--endpoint-url", sqs.url]

    def put(self, count: int, first: int = 0, **more: str) -> None:
        def work() -> None:
            url = self.sqs.sqs.url("orders-dlq")
            for index in range(first, first + count):
                body = json.dumps({"id": index})
                envelope = json.dumps(envelope_of(body, f"id-{index}", **more))
                attributes = {"Tarry": {"DataType": "String", "StringValue": envelope}}
                parameters = {"QueueUrl": url, "MessageBody": body, "MessageAttributes": attributes}
                self.sqs.sqs.call("SendMessage", parameters)

        self.sqs.on_the_loop(work)

    def bodies(self, queue: str) -> list[int]:
        return self.sqs.on_the_loop(lambda: [json.loads(each.body)["id"] for each in self.sqs.sqs.peek(queue)])

    def at_one_moment(self) -> tuple[list[int], list[int]]:
        """Return the bodies in orders-dlq and in orders; each look at a queue lets a move task go on, so look again."""
        while True:
            left, sent = self.bodies("orders-dlq"), self.bodies("orders")
            if self.bodies("orders-dlq") == left:
                return left, sent

    def in_flight(self) -> int:
        return self.sqs.on_the_loop(lambda: self.sqs.sqs.depth("orders-dlq").in_flight)

    def until(self, condition: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < ends_at, self.guidance()
            time.sleep(0.02)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        path = os.pathsep.join(filter(None, sys.path))
        own = {"PYTHONPATH": path, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        return {**kept, **own, "AWS_EC2_METADATA_DISABLED": "true", "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}

    @contextmanager
    def started(self, *arguments: str) -> Iterator[Command]:
        """Start `tarry failed`. Its pipe takes about ten lines, so it cannot get far ahead of the test."""
        with self.running("failed", *arguments, pipe_bytes=4_096) as process:
            yield process

    @contextmanager
    def running(self, *arguments: str, pipe_bytes: int | None = None) -> Iterator[Command]:
        """Start a command on the dead letters."""
        with (
            (self.folder / "stderr").open("w") as errors,
            running(
                *arguments,
                *self.where,
                folder=self.folder,
                environment=self.environment(),
                errors=errors,
                pipe_bytes=pipe_bytes,
            ) as process,
        ):
            yield process

    def terminal(self, *arguments: str, **environment: str) -> Terminal:
        """Start `tarry failed` at a terminal."""
        given = {**self.environment(), **environment}
        terminal = Terminal("failed", *arguments, *self.where, folder=self.folder, environment=given)
        self._terminals.append(terminal)
        return terminal

    def end(self) -> None:
        """End the commands at terminals."""
        for terminal in self._terminals:
            terminal.end()

    def guidance(self) -> str:
        """Return the stderr of the last command."""
        return (self.folder / "stderr").read_text()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ServedShop]:
    with served() as sqs:
        shop = ServedShop(sqs, tmp_path)
        yield shop
        shop.end()
