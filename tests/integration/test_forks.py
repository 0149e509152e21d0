"""A child that a handler forks ends with its handler: it runs nothing else of the batch, settles and logs nothing.

Each test is a script in a process of its own: a child that went on would go on with the tests.
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


def play(handler: str, count: int = 4) -> list[Any]:
    script = SCRIPT.format(handler=handler).replace("COUNT", str(count))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    told: list[Any] = json.loads(line)
    return told


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_ends_with_its_handler(way: str) -> None:  # SPEC A6
    failed, ran, exit_codes, operations = play(WAYS[way]("lambda: None"))
    assert failed == ["m2"]
    assert ran == ["m0", "m1", "m2", "m3"]
    assert exit_codes == [0]
    assert operations.count("ChangeMessageVisibilityBatch") == 1


WITHOUT_IMPORTS = """
import builtins

@consumer(backoff=Fixed(60))
def handler(message):
    whole = builtins.__import__
    if message.delivery_id == "m1":
        builtins.__import__ = lambda *_, **__: raise_(ImportError("no file descriptor is left"))
    try:
        work(message, lambda: None)
    finally:
        builtins.__import__ = whole
"""


def test_a_forked_child_in_which_nothing_can_be_imported_ends_with_its_handler() -> None:  # SPEC A6
    failed, ran, exit_codes, _ = play(WITHOUT_IMPORTS)
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


def test_a_forked_child_ends_with_the_code_that_python_would_give_it() -> None:  # SPEC A6
    failed, _, exit_codes, operations = play(OF_EACH, 6)
    assert (failed, exit_codes, operations) == ([], [3, 0, 1, 1, 1, 1], [])


OF_BATCH = """
@batch_consumer(backoff=Fixed(60))
def handler(batch):
    fork(lambda: None)
    fork(lambda: raise_(SystemExit(3)))
    batch[2].fail(ValueError())
"""


def test_a_child_that_a_batch_handler_forks_ends_with_it() -> None:  # SPEC A6
    failed, _, exit_codes, operations = play(OF_BATCH)
    assert (failed, exit_codes) == (["m2"], [0, 3])
    assert operations.count("ChangeMessageVisibilityBatch") == 1


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


def test_a_process_of_multiprocessing_works_as_ever() -> None:  # SPEC A6
    assert play(IN_PARALLEL) == [[], ["m0", "m1", "m2", "m3"], [0, 0, 0, 0], []]
