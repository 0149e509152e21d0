"""`tarry local` as a process, tested from outside."""

import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tarry.tools.local.aws.client import sqs_client
from tests.command import start
from tests.leftovers import MARK, marked
from tests.network import free_port
from tests.processes import end

SOON_SECONDS = 120.0
"""The limit of all waits, for a busy machine."""
STARTED: list["LocalProcess"] = []
"""The processes that tests have started; also a test that fails must not leave a process behind."""


class LocalProcess:
    """The command in a folder. Its processes have a mark in their environment, by which leftover ones are found."""

    def __init__(self, folder: Path, *options: str, endpoint_url: str | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.lines: list[str] = []
        """The lines of stdout and stderr, without the time of day."""
        self._mark = uuid.uuid4().hex
        where = ["--endpoint-url", endpoint_url] if endpoint_url else ["--port", str(self.port)]
        marks = ["--env", f"MARK={self._mark}", "--env", f"{MARK}={os.environ[MARK]}"]
        self.process = start("local", *where, *marks, *options, folder=folder)
        STARTED.append(self)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.endpoint = endpoint_url or f"http://127.0.0.1:{self.port}"
        self.sqs: Any = sqs_client(self.endpoint)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(re.sub(r"^\d\d:\d\d:\d\d +", "", line.rstrip("\n")))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait(self, pattern: str, times: int = 1) -> None:
        """Wait until the output matches a pattern."""
        self.until(lambda: len(re.findall(pattern, self.text, re.MULTILINE)) >= times, pattern)

    def until(self, condition: Callable[[], bool], name: str) -> None:
        ends_at = time.monotonic() + SOON_SECONDS
        while not condition():
            assert self.process.poll() is None, f"the process has ended: {self.text}"
            assert time.monotonic() < ends_at, f"not seen: {name}\n{self.text}"
            time.sleep(0.02)

    def committed(self, message_id: str) -> None:
        """Wait until a message is committed."""
        self.until(lambda: self.timeline(message_id)[-1:] == ["COMMITTED"], f"the end of {message_id}")

    def ended(self, *message_ids: str) -> None:
        """Wait until messages are committed or dead-lettered."""
        ends = re.compile("COMMITTED|DEAD_LETTERED")
        self.until(lambda: all(ends.search(str(self.timeline(each)[-1:])) for each in message_ids), "ends of messages")

    def url(self, queue: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=queue)["QueueUrl"])

    def send(self, queue: str, body: str, **more: Any) -> str:
        """Send a message; return its id."""
        return str(self.sqs.send_message(QueueUrl=self.url(queue), MessageBody=body, **more)["MessageId"])

    def depth(self, queue: str) -> int:
        """Return the number of messages in a queue, including invisible ones."""
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=["All"])["Attributes"]
        return sum(int(attributes[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible", "Delayed"))

    def states(self, message_id: str) -> list[str]:
        """Return the states of a message without times, which depend on the machine."""
        return [re.sub(r"^([A-Z_]+)( [\d.]+ (s|min)\b)+", r"\1", each) for each in self.timeline(message_id)]

    def timeline(self, message_id: str) -> list[str]:
        """Return the states of a message as shown."""
        return re.findall(rf"^ *{message_id[:8]} \S+  (.*)$", self.text, re.MULTILINE)

    def end(self, number: int) -> int:
        """End the process with a signal, and read the rest of its output; return its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(SOON_SECONDS)
        self._reader.join(10)  # longer only if it has left a process behind
        return code

    def left(self) -> list[str]:
        """Return the commands of its processes that still run."""
        return list(marked(self._mark).values())

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        if self.process.poll() is None:
            self.process.kill()
        for process_id in marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self._reader.join(SOON_SECONDS)  # all writers have ended
        end(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
