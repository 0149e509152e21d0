"""Two versions of tarry side by side on one queue: each continues messages that the other sent again."""

import io
import json
import shutil
import subprocess
import tarfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.deploy.environment import ROOT
from tests.deploy.samples import expect, require
from tests.deploy.stack import Stack

OLDER = "8031aa2"
"""The commit of the older version."""
MESSAGES = {f"m-{number}": failures for number, failures in enumerate([0, 1, 2, 3, 9] * 5)}
"""How many attempts fail, by the name of the message. 9 is more than the consumer makes."""
ATTEMPTS = 4
"""The most attempts of a message: two, then one for each of the two times that it is sent again."""


def build(folder: Path) -> None:
    """Make the folder to deploy: the function, the layer with the older version, and the layer with this one."""
    source = Path(__file__).with_name("two_versions")
    (folder / "function").mkdir(parents=True)
    shutil.copy(source / "app.py", folder / "function")
    shutil.copy(source / "template.yaml", folder)
    package = "layers/tarry/python"
    archive = subprocess.run(["git", "archive", OLDER, package], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise AssertionError(f"this clone lacks the commit {OLDER}: git fetch --unshallow\n{archive.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        files.extractall(folder / "unpacked")
    shutil.copytree(folder / "unpacked" / package, folder / "older" / "python")
    shutil.copytree(ROOT / package, folder / "this" / "python", ignore=shutil.ignore_patterns("__pycache__"))


def check(stack: Stack) -> str:
    """Send the messages, and check that no version starts a message over; return a line about the runs."""
    queue, names = stack.outputs["BothQueueUrl"], {}
    for name, failures in MESSAGES.items():
        body = json.dumps({"name": name, "failures": failures})
        names[stack.client_of_queues.send_message(QueueUrl=queue, MessageBody=body)["MessageId"]] = name
    stack.wait_until_settled(queue)
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(stack.table("Runs"), key=lambda run: run["at"]):
        runs.setdefault(run["message"], []).append(run)
    expect("messages that ran, by their stable ids", set(runs), set(names))
    for id, of_message in runs.items():
        last = min(MESSAGES[names[id]] + 1, ATTEMPTS)
        attempts = [run["attempt"] for run in of_message]
        expect(f"attempts of {names[id]}, of which the first was deferred", attempts, [1, *range(1, last + 1)])
        failed = [run["failed"] for run in of_message]
        expect(f"earlier failures that {names[id]} carried", failed, _carried(attempts))
    _check_dead_letters(stack, names)
    crossed = Counter(
        f"{first['version']} to {second['version']}"
        for of_message in runs.values()
        for first, second in pairwise(of_message)
    )
    for direction in ("older to this", "this to older"):
        require(crossed[direction], f"no message went from {direction} version")
    both = f"{crossed['older to this']} from {OLDER} to this version, {crossed['this to older']} back"
    return f"{sum(map(len, runs.values()))} runs of {len(runs)} messages; {both}"


def _carried(attempts: list[int]) -> list[int]:
    """Return the failures in the envelope at each run: those up to the last copy."""
    return [attempt - 1 if attempt > 2 else 0 for attempt in attempts]


def _check_dead_letters(stack: Stack, names: dict[str, str]) -> None:
    envelopes = [message.envelope for message in stack.messages(stack.outputs["BothDeadLettersUrl"])]
    exhausted = {id for id, name in names.items() if MESSAGES[name] >= ATTEMPTS}
    expect("ids of the dead letters", {envelope["id"] for envelope in envelopes}, exhausted)
    for envelope in envelopes:
        name, failure, last = names[envelope["id"]], envelope["failure"], envelope["history"][-1]
        expect(f"failure of {name}", (failure["reason"], failure["attempts"]), ("exhausted", ATTEMPTS))
        expect(f"last entry in the history of {name}", last["error"], f"ValueError: attempt {ATTEMPTS} fails")
