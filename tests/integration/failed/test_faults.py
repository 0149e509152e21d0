"""`tarry failed` through a proxy that loses, cuts, repeats, throttles and refuses.

Whatever happens to requests and answers: no dead letter is lost, and what a command says became of one is what did.

``TARRY_FAULTS=50 pytest tests/integration/failed/test_faults.py`` runs each command with 50 seeds.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tarry.decide.retry_policy import Fixed
from tarry.tools.cli.app import app
from tests.integration.failed.motoshop import APP, TEMPLATE, editor
from tests.proxy import FAULTS, UNAPPLIED, FaultProxy, at_random, proxied
from tests.served import served
from tests.shop import ServedShop
from tests.wire import arn

SEEDS = int(os.environ.get("TARRY_FAULTS", "2"))
COUNT = 40


class FaultyShop:
    """A served SQS behind a proxy with faults, and the command."""

    def __init__(self, shop: ServedShop, proxy: FaultProxy) -> None:
        self.shop = shop
        self.proxy = proxy
        self.archive = shop.folder / "removed.jsonl"

    def run(self, *arguments: str) -> Result:
        where = ("--queue", "orders-dlq", "--endpoint-url", self.proxy.url)
        return CliRunner(env={"XDG_STATE_HOME": str(self.shop.folder)}).invoke(app, ["failed", *arguments, *where])

    def run_with_faults(self, seed: str, *arguments: str) -> Result:
        """Run a command while faults strike a third of the requests."""
        self.proxy.struck.clear()
        self.proxy.choose = at_random(Random(seed), 0.3)
        try:
            result = self.run(*arguments, "--json")
        finally:
            self.proxy.choose = lambda _: None
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    def strike(self, operation: str, fault: str, times: int, *, after: str | None = None) -> None:
        """Let a fault strike the next requests of an operation; after another one, which SIGTERM follows."""
        asked: list[str] = []

        def choose(name: str) -> str | None:
            asked.append(name)
            if name == after:
                os.kill(os.getpid(), signal.SIGTERM)
            is_time = after is None or after in asked
            struck = self.proxy.struck[operation, fault] < times
            return fault if name == operation and is_time and struck else None

        self.proxy.choose = choose

    def no_unnoticed_double(self, each: str, copies: int, line: dict[str, Any], result: Result, queue: str) -> None:
        """Check that the command tells of a message that is in a queue twice."""
        if copies > 1 and not self.proxy.struck["SendMessageBatch", "repeated"]:  # which no client can see
            assert line["outcome"] == "unconfirmed" or f"{each}: it may be in {queue} twice" in result.stderr, line

    def last_line(self) -> dict[str, Any]:
        """Return the last line of the audit."""
        found: dict[str, Any] = json.loads((self.shop.folder / "tarry/audit.jsonl").read_text().splitlines()[-1])
        return found

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each message is in orders-dlq and in orders, by its id."""
        left, sent = (Counter(f"id-{each}" for each in self.shop.bodies(queue)) for queue in ("orders-dlq", "orders"))
        return left, sent


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyShop]:
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)  # the model has all messages on one server
    monkeypatch.setattr("tarry.tools.cli.failed.retrying.STEP_SECONDS", 0.01)
    monkeypatch.setattr("tarry.failed.requests.BACKOFF", Fixed(0, jitter=None))
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with served() as sqs, proxied(sqs) as proxy:
        yield FaultyShop(ServedShop(sqs, tmp_path), proxy)


def reported(result: Result) -> dict[str, dict[str, Any]]:
    """Return what the command says of each dead letter, by its id."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == len({line["id"] for line in lines})
    return {line["id"]: line for line in lines}


BRIEFLY = ("--keepalive", "1")
"""Dead letters whose receive got no answer are visible again after three seconds."""
ALL = {f"id-{index}" for index in range(COUNT)}
RETRIES = {
    "all": ("--all",),
    "concurrent": ("--all", "--concurrency", "4"),
    "canary": ("--all", "--canary", "5", "--within", "1s"),
    "ids": tuple(f"id-{index}" for index in range(10, COUNT, 2)),
    "edit": ("id-1", "id-2", "id-3", "--edit"),
}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", RETRIES)
def test_a_retry_tells_what_became_of_each_message(
    faulty: FaultyShop, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:  # SPEC M3, M6
    faulty.shop.put(COUNT)
    editor(faulty.shop.folder, monkeypatch, "}", ', "edited": true}')
    result = faulty.run_with_faults(f"{name} {seed}", "retry", *RETRIES[name], "--force", *BRIEFLY)
    outcomes = reported(result)
    left, sent = faulty.counts()
    assert left.keys() | sent.keys() == ALL
    for each in ALL:
        line = outcomes.get(each, {"outcome": "skipped"})
        assert left[each] <= 1
        match line["outcome"]:
            case "retried":
                assert (left[each], sent[each] > 0) == (0, True)
            case "failed" if "sent to orders" in line["error"]:
                assert sent[each]
            case "failed" | "skipped":
                assert (left[each], sent[each]) == (1, 0), line
        faulty.no_unnoticed_double(each, sent[each], line, result, "orders")


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["all", "concurrent", "ids"])
def test_what_a_removal_does_not_delete_is_in_the_queue_and_what_it_deletes_can_be_restored(
    faulty: FaultyShop, name: str, seed: int
) -> None:  # SPEC M3, M6
    faulty.shop.put(COUNT)
    archive = str(faulty.archive)
    result = faulty.run_with_faults(
        f"{name} {seed}", "remove", *RETRIES[name], "--archive", archive, "--force", *BRIEFLY
    )
    outcomes = reported(result)
    left, sent = faulty.counts()
    assert not sent
    for each in ALL:
        line = outcomes.get(each, {"outcome": "skipped"})
        assert left[each] <= 1
        if line["outcome"] != "unconfirmed":
            assert left[each] == (line["outcome"] != "deleted"), line
    if not faulty.archive.exists():
        assert left.keys() == ALL
        return
    result = faulty.run_with_faults(f"restore {seed}", "restore", archive)
    restored = reported(result)
    now, _ = faulty.counts()
    for each in ALL:
        line = restored.get(each, {"outcome": "skipped"})
        match line["outcome"]:
            case "restored":
                assert (left[each], now[each] > 0) == (0, True)
            case "failed" | "skipped":
                assert now[each] == left[each], line
        faulty.no_unnoticed_double(each, now[each], line, result, "orders-dlq")
    again = faulty.run("restore", archive, "--force", "--json")
    assert again.exit_code == 0, again.stderr
    assert faulty.counts()[0].keys() == ALL


@pytest.mark.parametrize("seed", range((SEEDS + 1) // 2))
@pytest.mark.parametrize(
    "arguments", [(), ("show", "--max", "15"), ("show", "--group-by", "error"), ("show", "id-11")], ids=" ".join
)
def test_what_only_reads_leaves_each_dead_letter_there(
    faulty: FaultyShop, arguments: tuple[str, ...], seed: int
) -> None:  # SPEC M2
    faulty.shop.put(COUNT)
    faulty.run_with_faults(f"{arguments} {seed}", *arguments)
    left, sent = faulty.counts()
    assert (left, sent) == (Counter(ALL), Counter())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_retry_in_this_process_tells_which_dead_letters_are_left(
    faulty: FaultyShop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:  # SPEC M3, M6
    """The handler succeeds for three messages; for the others it fails, and a new dead letter takes the place."""
    monkeypatch.chdir(faulty.shop.folder)
    (faulty.shop.folder / "code").mkdir()
    (faulty.shop.folder / "code/app.py").write_text(APP)
    (faulty.shop.folder / "template.yaml").write_text(TEMPLATE)
    faulty.shop.put(10)
    result = faulty.run_with_faults(f"local {seed}", "retry", "--all", "--via", "local", "--force", *BRIEFLY)
    left, sent = faulty.counts()
    assert not sent
    for each, line in reported(result).items():
        if line["outcome"] == "retried":
            assert left[each] == 0
        elif line["outcome"] != "unconfirmed":
            assert left[each], line
        if left[each] > 1 and not faulty.proxy.struck["SendMessageBatch", "repeated"]:
            assert "may be" in line["error"] or "could not be deleted" in line["error"], line
    assert {f"id-{index}" for index in range(10)} - left.keys() <= reported(result).keys()


@pytest.mark.parametrize(("tries", "rate"), [(1, ()), (99, ("--rate", "500/s"))], ids=["once", "always, at a rate"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_move_task_whose_start_gets_no_clear_answer_is_watched_and_counted(
    faulty: FaultyShop, fault: str, tries: int, rate: tuple[str, ...]
) -> None:  # SPEC M3, M6
    faulty.shop.put(COUNT)
    faulty.strike("StartMessageMoveTask", fault, tries)
    result = faulty.run("retry", "--all", "--via", "aws", "--force", *rate)
    moved = faulty.counts()[1].total()
    ended = faulty.last_line()
    match result.exit_code:
        case 0:
            assert f"orders-dlq: completed, about {COUNT} messages moved to orders" in result.stdout
            [change] = ended["changes"]
            assert (moved, change["move_task"], change["moved"]) == (COUNT, "completed", COUNT)
        case 1:  # no task is listed
            assert "SQS may have started a message move task, or not: " in result.stderr
            assert (moved, ended["changes"][0]["move_task"]) == (0, "unconfirmed")
        case _:
            assert (result.exit_code, "changes" in ended) == (2, False)
            assert moved == 0 or (fault == "repeated" and "There is already a task running" in result.stderr)
    assert result.exit_code == 0 or fault == "repeated" or fault in UNAPPLIED
    assert result.exit_code == 0 or tries > 1 or fault in {"repeated", "denied", "portal"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", ["ListMessageMoveTasks", "CancelMessageMoveTask"])
def test_a_move_task_that_cannot_be_watched_or_cancelled_is_said_to_go_on(
    faulty: FaultyShop, operation: str, fault: str
) -> None:  # SPEC M6
    """SIGTERM comes as soon as the task is started: the command cancels it."""
    faulty.shop.put(COUNT)
    faulty.strike(operation, fault, 99, after="StartMessageMoveTask")
    result = faulty.run("retry", "--all", "--via", "aws", "--rate", "1/s", "--force")
    [change] = faulty.last_line()["changes"]
    [task] = faulty.shop.sqs.client.list_message_move_tasks(SourceArn=arn("orders-dlq"))["Results"]
    if "SQS lists no message move task that was started now" in result.stderr:
        assert (fault, change["move_task"]) == ("cut", "started")  # half an answer is an empty one to boto3
    elif result.exit_code == 128 + signal.SIGTERM:
        assert (task["Status"], change["move_task"]) == ("CANCELLED", "cancelled")
    else:
        assert (result.exit_code, change["move_task"]) == (1, "started")
        assert "if a message move task was started, it goes on" in result.stderr


@pytest.mark.parametrize(("operation", "exit_code"), [("DeleteMessageBatch", 1), ("GetQueueUrl", 2)])
def test_a_page_of_html_in_place_of_an_answer_confirms_nothing(
    faulty: FaultyShop, operation: str, exit_code: int
) -> None:  # SPEC M6
    faulty.shop.put(3)
    faulty.proxy.choose = lambda asked: "portal" if asked == operation else None
    result = faulty.run("remove", "--all", "--archive", str(faulty.archive), "--force", "--json")
    assert result.exit_code == exit_code, result.output
    if exit_code == 2:
        assert "but a web server with HTML (HTTP status 200)" in result.stderr
    assert {line["outcome"] for line in reported(result).values()} == ({"unconfirmed"} if exit_code == 1 else set())
    assert faulty.counts()[0] == Counter({"id-0": 1, "id-1": 1, "id-2": 1})
