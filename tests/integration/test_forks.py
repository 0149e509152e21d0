"""A child process that a handler forks ends with its handler: it runs no other message, settles none, and logs nothing.

Each test runs a script in its own process, because a child that did not end would continue with the tests.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")

SCRIPT = """
import asyncio, json, logging, multiprocessing, os, sys
from tarry import *
from tests.records import Context, batch_of, failed
from tests.wire import Queue, Wire

PARENT = os.getpid()
ran, exit_codes = [], []


class Lines(logging.Handler):
    def emit(self, line):
        if os.getpid() != PARENT:
            print("A LINE OF THE CHILD", line.getMessage(), flush=True)


logging.getLogger("tarry").addHandler(Lines())


def fork(child):
    if (pid := os.fork()) == 0:
        child()
        return
    exit_codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def raise_(error):
    raise error


def work(message, child):
    if os.getpid() != PARENT:
        print("THE CHILD RAN", message.delivery_id, flush=True)
    ran.append(message.delivery_id)
    if message.delivery_id == "m1":
        fork(child)
    if message.delivery_id == "m2":
        raise ValueError("ordinary")


{handler}

with Wire(queues={{"orders": Queue()}}) as wire:
    answer = handler(batch_of(COUNT), Context())
if os.getpid() != PARENT:
    print("THE CHILD CAME BACK", flush=True)
print(json.dumps([failed(answer), sorted(ran), exit_codes, wire.operations]))
"""

EACH = "@consumer(backoff=Fixed(60)%s)\ndef handler(message):\n    work(message, %s)"
ASYNC = "@consumer(backoff=Fixed(60), concurrency=2)\nasync def handler(message):\n    work(message, %s)"
WAYS = {
    "one by one": lambda child: EACH % ("", child),
    "acknowledged eagerly": lambda child: EACH % (", ack='eager'", child),
    "threads": lambda child: EACH % (", concurrency=3", child),
    "tasks": lambda child: ASYNC % child,
}


def run_script(handler: str, count: int = 4) -> list[Any]:
    script = SCRIPT.format(handler=handler).replace("COUNT", str(count))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    result: list[Any] = json.loads(line)
    return result


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_ends_with_its_handler(way: str) -> None:  # SPEC A6
    failed, ran, exit_codes, operations = run_script(WAYS[way]("lambda: None"))
    assert failed == ["m2"]
    assert ran == ["m0", "m1", "m2", "m3"]
    assert exit_codes == [0]
    assert operations.count("ChangeMessageVisibilityBatch") == 1


WITHOUT_IMPORTS = """
import builtins

@consumer(backoff=Fixed(60))
def handler(message):
    original = builtins.__import__
    if message.delivery_id == "m1":
        builtins.__import__ = lambda *_, **__: raise_(ImportError("no file descriptor is left"))
    try:
        work(message, lambda: None)
    finally:
        builtins.__import__ = original
"""


def test_a_forked_child_that_cannot_import_modules_ends_with_its_handler() -> None:  # SPEC A6
    failed, ran, exit_codes, _ = run_script(WITHOUT_IMPORTS)
    assert (failed, ran, exit_codes) == (["m2"], ["m0", "m1", "m2", "m3"], [0])


OF_EACH = """
ends = {
    "m0": SystemExit(3), "m1": SystemExit(), "m2": SystemExit("no"), "m3": ValueError(), "m4": KeyboardInterrupt(),
    "m5": Retry(5),
}

@consumer(backoff=Fixed(60))
def handler(message):
    fork(lambda: raise_(ends[message.delivery_id]))
"""


def test_a_forked_child_ends_with_the_exit_code_of_python() -> None:  # SPEC A6
    failed, _, exit_codes, operations = run_script(OF_EACH, 6)
    assert (failed, exit_codes, operations) == ([], [3, 0, 1, 1, 1, 1], [])


OF_BATCH = """
@batch_consumer(backoff=Fixed(60))
def handler(batch):
    fork(lambda: None)
    fork(lambda: raise_(SystemExit(3)))
    batch[2].fail(ValueError())
"""


def test_a_child_forked_by_a_batch_handler_ends_with_the_handler() -> None:  # SPEC A6
    failed, _, exit_codes, operations = run_script(OF_BATCH)
    assert (failed, exit_codes) == (["m2"], [0, 3])
    assert operations.count("ChangeMessageVisibilityBatch") == 1


OF_HOOKS = """
def forks(given, *_):
    fork(lambda: None)
    return given

class Backoff:
    does = lambda self: None
    def delay(self, attempt, rng=None):
        self.does()
        return 10

def fails(message):
    if message.delivery_id == "m1":
        raise ValueError

backoff = Backoff()
settings = [
    {"retry_when": lambda failure: forks(None)},
    {"backoff": backoff},
    {"on_failure": [lambda failure, next_step: forks(Outcome.retry(5))]},
    {"on_failure": [DeadLetter(queue="dead", redact=forks)]},
    {"on_failure": [DeadLetter(queue="dead", enrich=lambda failure: forks({}))]},
    {"on_failure": [DeadLetter(queue=lambda failure: forks("dead"))]},
    {"log": LogOptions(redact=forks)},
    {"on_outcome": lambda message, outcome: forks(None)},
]
consumers = [consumer(concurrency=number, **each)(fails) for each in settings for number in (1, 2)]
backoff.does = lambda: forks(None)

def handler(event, context):
    return [each(event, context) for each in consumers][0]
"""


def test_a_child_forked_by_a_hook_ends_with_the_hook() -> None:  # SPEC I7, A6
    failed, _, exit_codes, operations = run_script(OF_HOOKS, 2)
    assert (failed, exit_codes) == (["m1"], [0] * 18)  # on_outcome is called for both messages
    assert operations.count("SendMessageBatch") == 6


IN_PARALLEL = """
@consumer(backoff=Fixed(60))
def handler(message):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=answers.put, args=(message.delivery_id,))
    process.start()
    ran.append(answers.get())
    process.join()
    exit_codes.append(process.exitcode)
"""


def test_processes_of_multiprocessing_work_in_a_handler() -> None:  # SPEC A6
    assert run_script(IN_PARALLEL) == [[], ["m0", "m1", "m2", "m3"], [0, 0, 0, 0], []]


IN_THE_CHILD = """
import json, os
from tarry import *
from tests.records import Context, batch_of, failed
from tests.wire import Queue, RunningClock, Wire

attempts = []

@consumer(concurrency=2)
def concurrent(message): ...

@consumer(attempts=MemoryAttempts())
def counted(message):
    attempts.append(message.attempt)
    raise ValueError

def deliver(receives):
    counted(batch_of(1, receives=receives), Context())
    return failed(concurrent(batch_of(2), Context(1)))

with Wire(queues={"orders": Queue()}, clock=RunningClock()):
    deliver(2)
    if os.fork() == 0:
        print(json.dumps([deliver(3), attempts]))
    else:
        os.wait()
"""


def test_a_forked_process_handles_batches_without_the_threads_of_its_parent() -> None:  # SPEC A6
    """As with a server for tests that forks for each request; threads are kept, but a child has none of them."""
    done = subprocess.run([sys.executable, "-c", IN_THE_CHILD], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout) == [[], [1, 2]], done.stderr
