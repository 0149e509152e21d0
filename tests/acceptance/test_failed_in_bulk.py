"""`tarry failed` as a process on many dead letters: killed anywhere, two operators, one key for a group, move tasks.

``TARRY_KILLS=50 pytest tests/acceptance/test_failed_in_bulk.py -k kill`` kills each command 50 times.
"""

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.test_failed import PROMPT
from tests.command import rest_of, some_lines
from tests.integration.failed.motoshop import editor
from tests.shop import ServedShop

if TYPE_CHECKING:
    from tests.command import Command

KILLS = int(os.environ.get("TARRY_KILLS", "1"))
COUNT = 60
COMMANDS = {
    "retry": ("retry", "--all", "--concurrency", "5"),
    "canary": ("retry", "--group", "9f2c61d0a4be", "--canary", "5", "--within", "1s"),
    "remove": ("remove", "--all", "--force"),
    "groups": ("show", "--group-by", "fingerprint"),
    "via aws": ("retry", "--all", "--via", "aws", "--rate", "40/s"),
}
IN_FLIGHT = {"retry": 50, "canary": 10}
"""The messages that may be doubled by a kill: those of the requests in progress."""


@pytest.fixture(autouse=True)
def _a_receive_that_finds_none_is_answered_soon(shop: ServedShop) -> None:
    """The model has all messages on one server."""
    shop.sqs.sqs.wait_seconds = lambda _: 0.05  # type: ignore[method-assign, assignment, return-value]


class Killer:
    """Kills a process when it makes its n-th request that changes something, before or after SQS carries it out."""

    def __init__(self, shop: ServedShop, number: int, *, is_done: bool) -> None:
        self.process: Command | None = None
        sqs: Any = shop.sqs.sqs
        carried_out = type(sqs).called_by
        made = 0

        def called_by(caller: str, operation: str, *arguments: Any) -> Any:
            nonlocal made
            made += 1
            if made == number and not is_done and self.process is not None:
                self.process.kill()
            answer = carried_out(sqs, caller, operation, *arguments)
            if made == number and is_done and self.process is not None:
                self.process.kill()
            return answer

        sqs.called_by = called_by


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("name", [name for name in COMMANDS if KILLS > 1 or name in {"retry", "canary"}])
def test_a_kill_at_any_request_loses_nothing_and_another_run_goes_on(
    shop: ServedShop, name: str, seed: int
) -> None:  # SPEC M3
    """At most the messages of the requests in progress are doubled."""
    random = Random(f"{name} {seed}")
    shop.put(COUNT)
    killer = Killer(shop, random.randint(1, 6 if name == "via aws" else 30), is_done=random.random() < 0.5)
    with shop.started(*COMMANDS[name], "--json", "--keepalive", "1") as process:
        killer.process = process
        rest_of(process)
    left, sent = shop.at_one_moment()
    both = Counter(sent + left)
    assert max(both.values(), default=1) <= 2
    assert sum(both.values()) - len(both) <= IN_FLIGHT.get(name, 0)
    assert name == "remove" or set(both) == set(range(COUNT))
    assert len(left) == len(set(left))
    if seed % 10 == 0:
        del shop.sqs.sqs.called_by
        shop.until(lambda: shop.in_flight() == 0)  # the visibility timeouts end
        with shop.started(*COMMANDS[name], "--json") as process:
            rest_of(process)
        assert process.returncode == (1 if name == "canary" and not left else 0)
        assert shop.bodies("orders-dlq") == (list(range(COUNT)) if name == "groups" else [])
        assert name in {"remove", "groups"} or set(shop.bodies("orders")) == set(range(COUNT))


NAMED = tuple(f"id-{index}" for index in range(50, 80))
OPERATORS = {
    "retry": ("retry", "--all", "--force"),
    "faster retry": ("retry", "--all", "--force", "--concurrency", "3"),
    "edit": ("retry", *NAMED, "--edit", "--force"),
    "remove": ("remove", "--all", "--force"),
    "remove of ids": ("remove", *NAMED, "--force"),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("retry", "faster retry"),
        ("retry", "remove"),
        ("edit", "retry"),
        ("remove of ids", "edit"),
    ],
)
def test_two_operators_on_one_queue_do_each_message_once(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:  # SPEC M3
    """Each has other messages in flight. An id that the other has is not found."""
    editor(shop.folder, monkeypatch, "}", ', "edited": true}')
    monkeypatch.setenv("XDG_STATE_HOME", str(shop.folder))
    shop.put(100)
    with shop.started(*OPERATORS[first], "--json") as one:
        lines = some_lines(one, 20)  # its pipe is full soon, so it waits
        with shop.started(*OPERATORS[second], "--json") as two:
            others = rest_of(two)
        lines += rest_of(one)
    results = [json.loads(line) for line in [*lines, *others]]
    done = {
        outcome: [each["id"] for each in results if each["outcome"] == outcome] for outcome in ("retried", "deleted")
    }
    failures = [each for each in results if each["outcome"] not in done]
    assert all(each["error"].startswith("not found in orders-dlq") for each in failures)
    assert {one.returncode, two.returncode} == ({0, 1} if failures else {0})
    archived = [json.loads(line) for path in shop.folder.rglob("removed/*.jsonl") for line in path.open()]
    assert sorted(f"id-{index}" for index in shop.bodies("orders")) == sorted(done["retried"])
    assert sorted(line["id"] for line in archived if "record" in line) == sorted(done["deleted"])
    left = {f"id-{index}" for index in shop.bodies("orders-dlq")}
    assert {*done["retried"], *done["deleted"]} == {f"id-{index}" for index in range(100)} - left
    assert left == set() or first == "remove of ids"
    assert shop.in_flight() == 0
    ended = [json.loads(line) for line in (shop.folder / "tarry/audit.jsonl").read_text().splitlines()]
    outcomes = sum((Counter(line.get("outcomes")) for line in ended), Counter[str]())
    assert (outcomes["retried"], outcomes["deleted"]) == (len(done["retried"]), len(done["deleted"]))


def test_one_key_decides_for_all_of_a_fingerprint_after_their_number_is_shown(
    shop: ServedShop, tmp_path: Path
) -> None:  # SPEC M3
    """The archive has those that it deletes, and the audit all that was done."""
    shop.put(6)
    shop.put(9, 6, type="app.Timeout", fingerprint="timeout00000")
    terminal = shop.terminal("retry", "--audit", str(tmp_path / "audit.jsonl"))
    assert "app.CardDeclined" in terminal.until(PROMPT)
    terminal.press("s")  # this one is decided already
    terminal.until(PROMPT)
    terminal.press("a")
    assert "5 dead letters with the fingerprint 9f2c61d0a4be in orders-dlq" in terminal.until("[b]ack ")
    terminal.press("b")
    terminal.until(PROMPT)
    terminal.press("a")
    assert "All of them: [r]etry  [d]elete  [s]kip  [b]ack" in terminal.until("[b]ack ")
    terminal.press("r")
    assert "app.Timeout" in terminal.until(PROMPT)
    assert shop.bodies("orders") == list(range(1, 6))
    terminal.press("a")
    assert "9 dead letters with the fingerprint timeout00000" in terminal.until("[b]ack ")
    terminal.press("d")
    terminal.until("Permanently delete 9 dead letters? [y/N] ")
    terminal.press("y")
    assert terminal.exit_code() == 0
    assert "retried 5, failed 0, skipped 1, deleted 9" in terminal.seen
    assert shop.bodies("orders-dlq") == [0]
    assert shop.in_flight() == 0
    line = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert line["outcomes"] == {"skipped": 1, "retried": 5, "deleted": 9}
    archive = [json.loads(each) for each in Path(line["archive"]).read_text().splitlines()]
    removed = [each["id"] for each in archive if "id" in each]
    assert len(removed) == len(set(removed)) == 9


def test_a_move_task_is_started_watched_and_cancelled(shop: ServedShop) -> None:  # SPEC M3
    """A second command watches the task that is running, as after a kill of the first."""
    shop.put(COUNT)
    with shop.started("retry", "--all", "--via", "aws", "--rate", "5/s") as process:
        shop.until(lambda: len(shop.bodies("orders")) >= 3)
        process.kill()
        process.wait()
    with shop.started("retry", "--all", "--via", "aws") as process:
        shop.until(lambda: "is running; watching it. Ctrl-C cancels it." in shop.guidance())
        process.send_signal(signal.SIGINT)
        lines = rest_of(process)
    assert process.returncode == 130
    moved = len(shop.bodies("orders"))
    assert lines == [f"orders-dlq: cancelled, about {moved} messages moved to orders\n"]
    assert sorted(shop.bodies("orders") + shop.bodies("orders-dlq")) == list(range(COUNT))
    with shop.started("retry", "--all", "--via", "aws", "--json") as process:
        [line] = rest_of(process)
    assert json.loads(line) == {"queue": "orders-dlq", "status": "COMPLETED", "moved": COUNT - moved}
    assert process.returncode == 0
    assert shop.bodies("orders-dlq") == []


def test_a_canary_that_comes_back_ends_the_command_with_the_count(shop: ServedShop) -> None:  # SPEC M3
    shop.put(COUNT)

    def fail(event: Any = None) -> bool:
        """Dead-letter what was retried, as a failing consumer would."""
        sqs = shop.sqs.sqs
        url, dead = sqs.url("orders"), sqs.url("orders-dlq")
        received = sqs.call(
            "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        )
        for message in received.get("Messages", []):
            attributes = message["MessageAttributes"]
            sqs.call("SendMessage", {"QueueUrl": dead, "MessageBody": message["Body"], "MessageAttributes": attributes})
            sqs.call("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]})
        return bool(received.get("Messages"))

    with shop.started("retry", "--all", "--canary", "2", "--within", "1m") as process:
        shop.until(lambda: shop.sqs.on_the_loop(fail))
        lines = rest_of(process)
    assert process.returncode == 1
    assert lines == ["retried 2, failed 0, skipped 0\n"]
    assert "Watching for 1 min whether they come back" in shop.guidance()
    assert re.search(r"tarry: [12] of 2 canaries came back to orders-dlq: no others were retried", shop.guidance())
    assert re.search(r"new error: tarry failed show \S+ --queue orders-dlq .*--endpoint-url http:", shop.guidance())
    assert sorted(shop.bodies("orders") + shop.bodies("orders-dlq")) == list(range(COUNT))
    assert shop.in_flight() == 0
