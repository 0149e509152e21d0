"""Forks: by a handler, by a server for tests, and those that stand for the environments restored from one snapshot.

A child that a handler forks ends with its handler: it runs no other message, settles none, and logs nothing. All
consumers run in a process of their own, because a child that did not end would continue with the tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")

SCRIPT = """
import asyncio, builtins, json, logging, multiprocessing, os, sys, threading
from contextvars import copy_context
from tarry import *
from tests.handlers import awaiting
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

def end(message):
    if message.delivery_id == "m0":
        print("a line of a child")
        sys.stderr.write("errors of a child")
    raise ends[message.delivery_id]

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
    {"retry_when": lambda failure: fork(lambda: raise_(SystemExit(3)))},
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

def in_a_thread(handler):
    def invoke(*arguments):
        answers = []
        run = copy_context().run
        thread = threading.Thread(target=run, args=(lambda: answers.append(handler(*arguments)),))
        thread.start()
        thread.join()
        return answers[0]
    return invoke

each = {"backoff": Fixed(60)}
consumers = {
    "one by one": (4, [consumer(**each)(work)]),
    "acknowledged eagerly": (4, [consumer(ack="eager", **each)(work)]),
    "threads": (4, [consumer(concurrency=3, **each)(work)]),
    "tasks": (4, [consumer(concurrency=2, **each)(awaiting(work))]),
    "without imports": (4, [consumer(**each)(work_without_imports)]),
    "ends": (6, [consumer(**each)(lambda message: fork(lambda: end(message)))]),
    "batch": (4, [batch_consumer(**each)(of_batch)]),
    "multiprocessing": (4, [consumer(**each)(in_parallel)]),
    "a hook in a thread": (2, [in_a_thread(with_hooks[0])]),
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


def test_a_forked_child_ends_with_its_handler_or_hook_and_a_forked_process_handles_batches() -> None:  # SPEC A6, I7
    """It ends with the exit code of Python, also if it cannot import modules. Processes of multiprocessing work."""
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT]  # of a fork with threads, from 3.12 on
    done = subprocess.run(command, env=buffered, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    of_child, line = done.stdout.splitlines()  # no more of a child than it has written itself
    assert (of_child, done.stderr[:17]) == ("a line of a child", "errors of a child"), done.stderr
    results: dict[str, Any] = json.loads(line)
    hooks = results.pop("hooks")
    # the ids reported as failed, the ids that ran, the exit codes, and the numbers of requests
    ways = ("one by one", "acknowledged eagerly", "threads", "tasks", "without imports")
    assert results == {
        **{way: [["m2"], FOUR, [0], 1, 0] for way in ways},
        "ends": [[], [], [3, 0, 1, 1, 1, 1], 0, 0],
        "batch": [["m2"], [], [0, 3], 1, 0],
        "a hook in a thread": [["m1"], [], [3], 1, 0],
        "multiprocessing": [[], FOUR, [0, 0, 0, 0], 0, 0],
        "in the child": [[], [1, 2]],  # without the threads of its parent
    }
    failed, _, exit_codes, _, sends = hooks
    assert (failed, exit_codes, sends) == (["m1"], [3] * 2 + [0] * 16, 6)  # on_outcome is called for both messages


FUNCTION = """
import json, os, sys
from tarry import Batch, Exponential, Message, RetryInPlace, SendAgain, batch_consumer, consumer
from tarry.world import World, current

class OwnBackoff:
    def delay(self, attempt, rng=None):
        return (rng.random() if rng else 0) + attempt

@consumer(max_attempts=5, backoff=Exponential(30, 3, maximum=900, jitter="full"))
def one(message: Message) -> None: ...

@consumer(on_failure=[RetryInPlace(), SendAgain("later", delay=Exponential(60, 2, maximum=600))], backoff=OwnBackoff())
def own(message: Message) -> None: ...

@batch_consumer
async def many(batch: Batch) -> None: ...

world, fresh = current(), World()
at_snapshot = {name: value for name, value in vars(world).items() if name not in ("_lock", "clock")}
assert at_snapshot == {name: vars(fresh)[name] for name in at_snapshot}, at_snapshot
assert not {name for name in vars(world.clock)}, "the clock keeps a reading"
assert "botocore" not in sys.modules
for _ in range(3):
    if os.fork() == 0:
        restored = {
            "delays": [world.random.random() for _ in range(3)],
            "id": world.new_id(),
            "jitter": Exponential(30, 3, maximum=900, jitter="full").delay(2),
        }
        os.write(1, json.dumps(restored).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def test_environments_restored_from_one_snapshot_share_no_random_source_client_or_clock_reading(tmp_path: Path) -> None:
    """SnapStart: Lambda takes a snapshot after the imports. A fork does the same with the memory of a process."""
    (tmp_path / "function.py").write_text(FUNCTION)
    run = subprocess.run([sys.executable, "function.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    restored = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(restored) == 3
    for name in ("delays", "id", "jitter"):
        assert len({str(each[name]) for each in restored}) == 3, f"{name}: environments got the same values"
