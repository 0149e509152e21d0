"""A message whose handler hangs, in a function with a share of a core, until it is dead-lettered.

The function is a real process under the runtime client of Lambda. Its queue is that of the simulator, served over HTTP;
waits between deliveries are skipped.
"""

import json
import math
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarry.failed.dead_letters import event_record
from tarry.tools.simulator.sqs import SqsError
from tests.acceptance.redelivery import Redelivery
from tests.acceptance.runtime import running
from tests.acceptance.runtime_api import START_SECONDS, FakeRuntimeApi, ProcessEnded
from tests.slow.share import Shares, delayed_seconds

ATTEMPTS, RECEIVES = 3, 5
CORE_MB = 1_769
"""The memory from which on a function has a whole core."""
BUSY = 0.1
"""The share of an invocation that its process may wait for a busy core; with more, the run does not count."""

ONE_AT_A_TIME = threading.Lock()
"""Held while a function initializes, which has a whole core."""

WAYS = {
    "sync": "@consumer(SETTINGS)\ndef handler(message):\n    time.sleep(600)",
    "threads": "@consumer(SETTINGS, concurrency=4)\ndef handler(message):\n    time.sleep(600)",
    "async": "@consumer(SETTINGS)\nasync def handler(message):\n    await asyncio.sleep(600)",
    "batch": "@batch_consumer(SETTINGS)\ndef handler(batch):\n    time.sleep(600)",
    "fifo": "@consumer(SETTINGS)\ndef handler(message):\n    time.sleep(600)",
}
SETTINGS = f"max_attempts={ATTEMPTS}, backoff=Fixed(1)"
APP = "import asyncio, time\nfrom tarry import Fixed, batch_consumer, consumer\n"


@dataclass(frozen=True)
class Case:
    """A function, and whether each delivery meets a new process."""

    timeout: int
    share: float
    way: str
    start: str
    """``warm``: one process takes all deliveries. ``cold``: each meets a new one. ``crashed``: each meets one that
    started within its invocation, as after a crash, so that it never had a whole core."""

    def __str__(self) -> str:
        return f"{self.timeout:2} s  {memory_mb(self.share):5} MB  {self.way:7} {self.start:7}"


@dataclass
class Ending:
    """The end of the message."""

    record: dict[str, Any] | None = None
    """The failure record of its dead letter; None if SQS moved it bare."""
    waits: list[int] = field(default_factory=list)
    """For how many seconds it waited between its deliveries."""
    spare: list[float] = field(default_factory=list)
    """The seconds between the answer and the deadline of each invocation; negative if it was killed."""
    log: str = ""
    is_busy: bool = False
    """Whether the machine was too busy for the figures to count."""

    @property
    def is_good(self) -> bool:
        return self.record is not None and self.record["attempts"] == ATTEMPTS and min(self.spare) >= 0

    def __str__(self) -> str:
        end = "bare" if self.record is None else f"record, attempt {self.record['attempts']}"
        late = sum(each < 0 for each in self.spare)
        answers = f"{late} of {len(self.spare)} late" if late else f"{min(self.spare):.2f} s early"
        permission = ", log names a permission" if "grant sqs" in self.log else ""
        return f"{end}; waits {self.waits}; answers {answers}{permission}{', busy' if self.is_busy else ''}"


def memory_mb(share: float) -> int:
    """Return the memory with which a function has a share of a core."""
    return round(CORE_MB * share)


class Hanging(Redelivery):
    """The queue of one case, and its function."""

    def __init__(self, case: Case, lambda_: Path, shares: Shares) -> None:
        self._case, self._shares = case, shares
        self._folder = tempfile.TemporaryDirectory()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed by __exit__
        (folder := Path(self._folder.name) / "orders").mkdir()
        (folder / "app.py").write_text(APP + WAYS[case.way].replace("SETTINGS", SETTINGS))
        memory = {
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(memory_mb(case.share)),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_FORMAT": "TEXT",
        }

        def start(**environment: str) -> Any:
            return running(folder, [lambda_], lambda_, memory | environment, output=self._log)

        super().__init__(start, timeout=case.timeout, receives=RECEIVES, is_fifo=case.way == "fifo")

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._log.close()
        self._folder.cleanup()

    def run(self) -> Ending:
        """Deliver the message until it is in the dead-letter queue."""
        ending, answered_at = Ending(), 0.0
        api: FakeRuntimeApi | None = None
        self.send("{}")
        while messages := self._receive():
            if answered_at:
                ending.waits.append(round(self._now() - answered_at))
            api = api or self._start_process()
            is_over = self._deliver(api, messages[0], ending) or self._case.start != "warm"
            answered_at = self._now()
            if is_over:
                self._end_process(api)
                api = None
        if api is not None:
            self._end_process(api)
        [dead] = self._peek(self._dead_letter_queue)
        if "Tarry" in dead.attributes:
            ending.record = json.loads(dead.attributes["Tarry"]["StringValue"])["failure"]
        self._log.seek(0)
        ending.log = self._log.read().decode()
        return ending

    def _deliver(self, api: FakeRuntimeApi, message: dict[str, Any], ending: Ending) -> bool:
        """Invoke the function with the message; return whether its process has ended, or is to be killed."""
        assert api.process is not None
        pid, record = api.process.pid, event_record(message, self._sqs.arn(self._queue), self._sqs.region)
        delayed, began, has_ended = delayed_seconds(pid), time.monotonic(), False
        try:
            answer = api.invoke({"Records": [record]}, self._timeout)
            took = time.monotonic() - began
            if not answer["batchItemFailures"]:
                with suppress(SqsError):  # on FIFO, a handle of a message that tarry has deleted
                    self._call("DeleteMessage", QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        except ProcessEnded:
            took, has_ended = time.monotonic() - began, True
        except TimeoutError:
            took, has_ended = math.inf, True
        ending.spare.append(self._timeout - took)
        ending.is_busy |= delayed_seconds(pid) - delayed > BUSY * self._timeout
        return has_ended

    def _start_process(self) -> FakeRuntimeApi:
        has_core = self._case.start != "crashed"
        with ONE_AT_A_TIME if has_core else nullcontext():
            api = self._new_process()
            assert api.process is not None
            self._shares.limit(api.process.pid, 1 if has_core else self._case.share)
            if not api.ready.wait(START_SECONDS):
                raise TimeoutError("the function was not loaded")
        if has_core:
            self._shares.limit(api.process.pid, self._case.share)
        return api

    def _end_process(self, api: FakeRuntimeApi) -> None:
        if api.process is not None:
            self._shares.limit(api.process.pid, 1)
        self._process.close()


def play(case: Case, lambda_: Path, shares: Shares) -> Ending:
    """Return what became of the message. ``lambda_``: a folder with the packages of Lambda's runtime, and the layer."""
    with Hanging(case, lambda_, shares) as hanging:
        return hanging.run()
