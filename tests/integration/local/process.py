"""`tarry local` as a process, watched from outside."""

import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tarry.local.aws.client import sqs_client
from tests.command import TARRY
from tests.leftovers import MARK, marked
from tests.network import free_port
from tests.processes import end

SOON_SECONDS = 120.0
"""How long a machine that is busy with other things may take."""
COMMAND = [*TARRY, "local"]
STARTED: list["Local"] = []
"""All that tests have started, for those that end early: none leaves a process behind."""


class Local:
    """The command, in a folder. Its processes bear a mark, by which those that are left would be found."""

    def __init__(self, folder: Path, *options: str, endpoint_url: str | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.lines: list[str] = []
        """What it has said on stdout and stderr, without the time of day."""
        self._mark = uuid.uuid4().hex
        where = ["--endpoint-url", endpoint_url] if endpoint_url else ["--port", str(self.port)]
        self.process = subprocess.Popen(
            [*COMMAND, *where, "--env", f"MARK={self._mark}", "--env", f"{MARK}={os.environ[MARK]}", *options],
            cwd=folder,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        STARTED.append(self)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.sqs: Any = sqs_client(endpoint_url or f"http://127.0.0.1:{self.port}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(re.sub(r"^\d\d:\d\d:\d\d +", "", line.rstrip("\n")))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait(self, pattern: str, times: int = 1) -> None:
        """Until a pattern was seen."""
        self.until(lambda: len(re.findall(pattern, self.text, re.MULTILINE)) >= times, pattern)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + SOON_SECONDS
        while not condition():
            assert self.process.poll() is None, f"it has ended: {self.text}"
            assert time.monotonic() < ends_at, f"not seen: {what}\n{self.text}"
            time.sleep(0.02)

    def url(self, queue: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=queue)["QueueUrl"])

    def send(self, queue: str, body: str, **more: Any) -> str:
        """The id."""
        return str(self.sqs.send_message(QueueUrl=self.url(queue), MessageBody=body, **more)["MessageId"])

    def depth(self, queue: str) -> int:
        """How many messages it holds, hidden ones too."""
        told = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=["All"])["Attributes"]
        return sum(int(told[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible", "Delayed"))

    def states(self, message_id: str) -> list[str]:
        """The states of a message without their seconds, of which a busy machine takes some."""
        return [re.sub(r"^([A-Z_]+)( [\d.]+ (s|min)\b)+", r"\1", each) for each in self.story(message_id)]

    def story(self, message_id: str) -> list[str]:
        """The states of a message, as they were shown."""
        return re.findall(rf"^ *{message_id[:8]} \S+  (.*)$", self.text, re.MULTILINE)

    def end(self, number: int) -> int:
        """End it with a signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(SOON_SECONDS)

    def left(self) -> list[str]:
        """The commands of its processes that still run."""
        return list(marked(self._mark).values())

    def kill(self) -> None:
        """End it with all that it has started, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        for process_id in marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self._reader.join(SOON_SECONDS)  # all that could write is gone
        end(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
