"""A child process that a handler forks ends with its handler: it runs no other message, settles none, and logs nothing.

All consumers run in a process of their own, because a child that did not end would continue with the tests.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")

SCRIPT = """
import asyncio, builtins, json, logging, multiprocessing, os, sys
from tarry import *
from tests.records import Context, batch_of, failed
from tests.wire import Queue, RunningClock, Wire

PARENT = os.getpid()
ran, exit_codes = [], []


class Lines(logging.Handler):
    def emit(self, line):
        if os.getpid() != PARENT:
            print("A LINE OF THE CHILD", line.getMessage(), flush=True)


logging.getLogger("tarry").addHandler(Lines())


def fork(child=lambda: None):
    if (pid := os.fork()) == 0:
        child()
        return
    exit_codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def raise_(error):
    raise error


def work(message):
    if os.getpid() != PARENT:
        print("THE CHILD RAN", message.delivery_id, flush=True)
    ran.append(message.delivery_id)
    if message.delivery_id == "m1":
        fork()
    if message.delivery_id == "m2":
        raise ValueError("ordinary")

async def work_async(message):
    work(message)

def work_without_imports(message):
    original = builtins.__import__
    if message.delivery_id == "m1":
        builtins.__import__ = lambda *_, **__: raise_(ImportError("no file descriptor is left"))
    try:
        work(message)
    finally:
        builtins.__import__ = original

ends = {
    "m0": SystemExit(3), "m1": SystemExit(), "m2": SystemExit("no"), "m3": ValueError(), "m4": KeyboardInterrupt(),
    "m5": Retry(5),
}

def of_batch(batch):
    fork()
    fork(lambda: raise_(SystemExit(3)))
    batch[2].fail(ValueError())

def in_parallel(message):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=answers.put, args=(message.delivery_id,))
    process.start()
    ran.append(answers.get())
    process.join()
    exit_codes.append(process.exitcode)

def forks(given, *_):
    fork()
    return given

class Backoff:
    does = lambda self: None
    def delay(self, attempt, rng=None):
        self.does()
        return 10

def fails_once(message):
    if message.delivery_id == "m1":
        raise ValueError

backoff = Backoff()
hooks = [
    {"retry_when": lambda failure: forks(None)},
    {"backoff": backoff},
    {"on_failure": [lambda failure, next_step: forks(Outcome.retry(5))]},
    {"on_failure": [DeadLetter(queue="dead", redact=forks)]},
    {"on_failure": [DeadLetter(queue="dead", enrich=lambda failure: forks({}))]},
    {"on_failure": [DeadLetter(queue=lambda failure: forks("dead"))]},
    {"log": LogOptions(redact=forks)},
    {"on_outcome": lambda message, outcome: forks(None)},
]
with_hooks = [consumer(concurrency=number, **each)(fails_once) for each in hooks for number in (1, 2)]
backoff.does = fork

each = {"backoff": Fixed(60)}
consumers = {
    "one by one": (4, [consumer(**each)(work)]),
    "acknowledged eagerly": (4, [consumer(ack="eager", **each)(work)]),
    "threads": (4, [consumer(concurrency=3, **each)(work)]),
    "tasks": (4, [consumer(concurrency=2, **each)(work_async)]),
    "without imports": (4, [consumer(**each)(work_without_imports)]),
    "ends": (6, [consumer(**each)(lambda message: fork(lambda: raise_(ends[message.delivery_id])))]),
    "batch": (4, [batch_consumer(**each)(of_batch)]),
    "multiprocessing": (4, [consumer(**each)(in_parallel)]),
    "hooks": (2, with_hooks),
}
results = {}
for name, (count, made) in consumers.items():
    ran.clear(), exit_codes.clear()
    with Wire(queues={"orders": Queue()}) as wire:
        answers = [handler(batch_of(count), Context()) for handler in made]
    if os.getpid() != PARENT:
        print("THE CHILD CAME BACK", flush=True)
    requests = [wire.acts.count(name) for name in ("ChangeMessageVisibilityBatch", "SendMessageBatch")]
    results[name] = [failed(answers[0]), sorted(ran), list(exit_codes), *requests]

# a process that forks between invocations, as a server for tests does for each request: the child has no threads of it
attempts = []

def count(message):
    attempts.append(message.attempt)
    raise ValueError

concurrent = consumer(concurrency=2)(lambda message: None)
counted = consumer(attempts=MemoryAttempts())(count)

def deliver(receives):
    counted(batch_of(1, receives=receives), Context())
    return failed(concurrent(batch_of(2), Context(1)))

logging.getLogger("tarry").handlers.clear()
sys.stdout.flush()
with Wire(queues={"orders": Queue()}, clock=RunningClock()):
    deliver(2)
    if os.fork() == 0:
        print(json.dumps({**results, "in the child": [deliver(3), attempts]}))
    else:
        os.wait()
"""
FOUR = ["m0", "m1", "m2", "m3"]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return by way: the ids reported as failed, the ids that ran, the exit codes, and the numbers of requests."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()  # nothing of a child
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("way", ["one by one", "acknowledged eagerly", "threads", "tasks", "without imports"])
def test_a_forked_child_ends_with_its_handler(way: str, results: dict[str, Any]) -> None:  # SPEC A6
    """Also if it cannot import modules."""
    assert results[way] == [["m2"], FOUR, [0], 1, 0]


def test_a_forked_child_ends_with_the_exit_code_of_python(results: dict[str, Any]) -> None:  # SPEC A6
    assert results["ends"] == [[], [], [3, 0, 1, 1, 1, 1], 0, 0]
    assert results["batch"] == [["m2"], [], [0, 3], 1, 0]


def test_a_child_forked_by_a_hook_ends_with_the_hook(results: dict[str, Any]) -> None:  # SPEC I7, A6
    failed, _, exit_codes, _, sends = results["hooks"]
    assert (failed, exit_codes, sends) == (["m1"], [0] * 18, 6)  # on_outcome is called for both messages


def test_processes_of_multiprocessing_work_in_a_handler(results: dict[str, Any]) -> None:  # SPEC A6
    assert results["multiprocessing"] == [[], FOUR, [0, 0, 0, 0], 0, 0]


def test_a_forked_process_handles_batches_without_the_threads_of_its_parent(results: dict[str, Any]) -> None:
    # SPEC A6
    assert results["in the child"] == [[], [1, 2]]
