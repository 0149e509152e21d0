"""Removed dead letters, their archive, and restoring it: the command against a served SQS, the package in a sandbox."""

import errno
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tarry import ConfigurationError, failed
from tarry.failed.archive import checksum
from tarry.failed.journal import Journal
from tarry.failed.requests import TRIES
from tarry.testing import Sandbox
from tarry.tools.cli.app import app
from tarry.tools.simulator.sqs.message import StoredMessage
from tests.integration.failed.sandboxed import fill, outcomes, places, remove, retry, there
from tests.served import Served, served
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

DLQS = ("orders-dlq", "orders-dlq.fifo")
THROTTLED = 2 * TRIES * TRIES
"""The tries of a send: two of boto3 for each of a request, and as many requests."""
BODIES = ('{"id": 1}', " tab\t newline\n \u00e9 \u4e2d \U0001f600 \ud7ff\ufffd ", "x")


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)
    with served() as sqs:
        for queue in DLQS:
            sqs.queue(queue)
        yield sqs


def run(sqs: Served, *arguments: str, queue: str = "orders-dlq") -> Result:
    return CliRunner().invoke(app, ["failed", *arguments, "--queue", queue, "--endpoint-url", sqs.url])


def put(sqs: Served, queue: str = "orders-dlq", bodies: tuple[str, ...] = BODIES) -> None:
    for index, body in enumerate(bodies):
        attributes: dict[str, Any] = {
            "Tarry": {"DataType": "String", "StringValue": json.dumps(envelope_of(body, f"id-{index}", message="é"))},
            "binary": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff\n\x89PNG"},
            "number": {"DataType": "Number.int", "StringValue": "007"},
            "text": {"DataType": "String.custom", "StringValue": "ü\t\n"},
        }
        fifo = {"MessageGroupId": f"g{index % 2}", "MessageDeduplicationId": f"d{index}"} if "fifo" in queue else {}
        sqs.client.send_message(
            QueueUrl=sqs.client.get_queue_url(QueueName=queue)["QueueUrl"],
            MessageBody=body,
            MessageAttributes=attributes,
            MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-a-b;Lineage=1:x"}},
            **(fifo or {"MessageGroupId": f"tenant-{index}"}),
        )


def messages(sqs: Served, queue: str = "orders-dlq") -> list[StoredMessage]:
    return sqs.on_the_loop(lambda: list(sqs.sqs.peek(queue)))


def contents(sqs: Served, queue: str = "orders-dlq") -> list[tuple[Any, ...]]:
    found = [
        (each.body, each.attributes, each.group, each.trace_header, "fifo" in queue and each.deduplication_id)
        for each in messages(sqs, queue)
    ]
    return sorted(found, key=lambda each: each[2] if "fifo" in queue else str(each))  # in order within a group


def archive_of(result: Result) -> Path:
    found = re.search(r"Dead letters are written to (\S+) before they are deleted", result.stderr)
    assert found, result.stderr
    return Path(found[1])


@pytest.mark.parametrize("queue", DLQS)
def test_what_remove_archives_is_restored_byte_for_byte_and_only_once(sqs: Served, queue: str) -> None:  # SPEC M7
    put(sqs, queue)
    before = contents(sqs, queue)
    removed = run(sqs, "remove", "--all", "--force", queue=queue)
    archive = archive_of(removed)
    assert (removed.exit_code, contents(sqs, queue)) == (0, []), removed.stderr
    assert f"To restore them:\n  tarry failed restore {archive} --queue {queue} --endpoint-url " in removed.stderr
    assert (stat.S_IMODE(archive.stat().st_mode), stat.S_IMODE(archive.parent.stat().st_mode)) == (0o600, 0o700)
    if "fifo" in queue:  # SQS would drop them in silence
        early = run(sqs, "restore", str(archive), queue=queue)
        assert (early.exit_code, contents(sqs, queue)) == (1, [])
        assert "id-0  failed: not restored: SQS dropped it" in early.stdout
        assert early.stdout.endswith("restored 0, failed 3, skipped 0\n")
        sqs.client.purge_queue(QueueUrl=sqs.client.get_queue_url(QueueName=queue)["QueueUrl"])  # forgets the ids
    other_run = Journal(archive.with_name(f"{archive.name}.restored"), "file", "", is_ours=True)
    at_once = run(sqs, "restore", str(archive), queue=queue)
    other_run.close()
    assert (at_once.exit_code, contents(sqs, queue)) == (2, [])
    assert "another tarry process is writing to it; no further message is sent" in at_once.stderr
    restored = run(sqs, "restore", str(archive), queue=queue)
    assert (restored.exit_code, restored.stdout) == (0, "restored 3, failed 0, skipped 0\n"), restored.output
    assert contents(sqs, queue) == before
    again = run(sqs, "restore", str(archive), queue=queue)
    assert (again.exit_code, len(messages(sqs, queue))) == (0, 3)
    assert f"id-0  skipped: already restored to {queue} at 20" in again.stdout
    other = next(name for name in DLQS if name != queue)
    archive.with_name(f"{archive.name}.restored").unlink()
    wrong = run(sqs, "restore", str(archive), queue=other)
    assert (wrong.exit_code, messages(sqs, other)) == (1, [])
    assert f"id-0  failed: it was removed from {queue}, a " in wrong.stdout


TEMPLATE = """
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 5}}
  Ledger:
    Type: AWS::SQS::Queue
    Properties: {FifoQueue: true, RedrivePolicy: {deadLetterTargetArn: !GetAtt DeadInOrder.Arn, maxReceiveCount: 5}}
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq}}
  DeadInOrder: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq.fifo, FifoQueue: true}}
"""


def test_the_commands_that_restore_an_archive_of_several_queues_are_one_for_each(sqs: Served, tmp_path: Path) -> None:
    put(sqs)
    put(sqs, DLQS[1])
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    before = [contents(sqs, queue) for queue in DLQS]
    where = ["--template", str(tmp_path / "template.yaml"), "--endpoint-url", sqs.url]
    removed = CliRunner().invoke(app, ["failed", "remove", "--all", "--force", *where])
    assert removed.stdout == "deleted 6, failed 0\n", removed.output
    title, *commands = removed.stderr.splitlines()[-3:]
    assert title == "To restore them:"
    for queue in DLQS:  # SQS drops a message on FIFO with a deduplication id of the last five minutes
        sqs.client.purge_queue(QueueUrl=sqs.client.get_queue_url(QueueName=queue)["QueueUrl"])
    for command in commands:
        restored = CliRunner().invoke(app, shlex.split(command)[1:])
        assert restored.stdout == "restored 3, failed 0, skipped 0\n", restored.output
    assert [contents(sqs, queue) for queue in DLQS] == before


RECORD: dict[str, Any] = {"messageId": "x", "body": "{}", "attributes": {}, "messageAttributes": {}}
RECORD["eventSourceARN"] = arn("orders-dlq")


def line_of(record: dict[str, Any], version: int = 2) -> bytes:
    """Return the line of a record, with its checksum."""
    return json.dumps({"v": version, "id": "x", "sum": checksum(record), "record": record}).encode()


DAMAGED = {
    line_of(RECORD).replace(b'"body": "', b'"body": "!'): "its checksum does not match",
    b"\x00\xff garbage": "it is not complete JSON",
    line_of(RECORD, version=3): "it is of version 3, and this tarry reads archives up to version 2",
    **dict.fromkeys([b'{"v":3}', b"[" * 100_000, b"\xff\x00", b"9" * 6_000, b'{"v":[]}', b'{"v":2,"deleted":7}'], ""),
    **{
        line_of(RECORD | changed): "its record lacks a part, or has one of another type"
        for changed in [
            *({name: None} for name in RECORD),
            {"body": 7},
            {"attributes": []},
            {"messageAttributes": {"a": "b"}},
        ]
    },
    line_of(RECORD)[:40]: "it is not complete JSON",
}


def test_lines_of_an_archive_that_cannot_be_read_are_named_and_the_others_are_restored(
    sqs: Served, tmp_path: Path
) -> None:
    archive = tmp_path / "removed.jsonl"
    put(sqs)
    run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    first = len(archive.read_bytes().splitlines()) + 1
    with archive.open("ab") as file:
        file.write(b"\n".join(DAMAGED))
    archive.with_name("removed.jsonl.restored").write_bytes(b"\n".join([*DAMAGED, b""]))
    put(sqs, bodies=("more",))  # is appended behind the incomplete line
    assert run(sqs, "remove", "--all", "--force", "--archive", str(archive)).exit_code == 0
    result = run(sqs, "restore", str(archive))
    assert (result.exit_code, len(messages(sqs))) == (1, 4), result.output
    *lines, last = result.stdout.splitlines()
    assert last == f"restored 4, failed {len(DAMAGED)}, skipped 0"
    for line, (number, why) in zip(lines, enumerate(DAMAGED.values(), first), strict=True):
        assert line.startswith(f"line {number}  failed: not restored: {why}")


def test_an_archive_that_cannot_be_written_removes_nothing_and_one_that_cannot_be_read_restores_nothing(
    sqs: Served, tmp_path: Path
) -> None:
    put(sqs)
    (tmp_path / "file").write_text('{"orders": 1}\n')
    (tmp_path / "later").write_bytes(line_of(RECORD, version=3))
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "file" / "x", "cannot be written: "),
        (tmp_path / "file", "exists and is not an archive of tarry"),
        (tmp_path, "cannot be written: Is a directory"),
        (tmp_path / "pipe", "cannot be written: it is not a regular file"),
    ):
        result = run(sqs, "remove", "--all", "--force", "--archive", str(path))
        assert (result.exit_code, result.stdout, why in result.stderr) == (2, "", True), result.stderr
        assert result.stderr.endswith("nothing more is removed; name another file (--archive FILE)\n")
    for arguments, why in (
        (("remove", "--all", "--archive", "x", "--no-archive"), "cannot be combined"),
        (("restore", str(tmp_path / "none")), "cannot be read: No such file or directory"),
        (
            ("restore", str(tmp_path / "file")),
            "has no dead letter to restore (it is not a line of a tarry archive in line 1)",
        ),
        (
            ("restore", str(tmp_path / "later")),
            "to restore (it is of version 3, and this tarry reads archives up to version 2 in line 1)",
        ),
    ):
        result = run(sqs, *arguments)
        assert (result.exit_code, why in result.stderr) == (2, True), result.stderr
    assert len(messages(sqs)) == 3
    assert run(sqs, "remove", "--all", "--force", "--no-archive").exit_code == 0
    assert messages(sqs) == []


def small_disk(path: Path, size: int) -> Callable[[int, Any], int]:
    """Return a stand-in for `os.write` with which a file cannot have more than ``size`` bytes."""
    write = os.write

    def to_a_small_disk(file: int, data: Any) -> int:
        if path.exists() and os.fstat(file).st_ino == path.stat().st_ino:
            room = size - path.stat().st_size
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(file, data[:room])
        return write(file, data)

    return to_a_small_disk


def test_when_the_disk_fills_up_only_what_is_archived_is_removed(
    sqs: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sqs, bodies=tuple(f"body {number}" for number in range(25)))
    archive = tmp_path / "removed.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("os.write", small_disk(archive, 20_000))
        result = run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    lines = [json.loads(line) for line in archive.read_text().splitlines()]
    removed = [line["record"]["body"] for line in lines if "record" in line]
    left = [each.body for each in messages(sqs)]
    assert (result.exit_code, 0 < len(left) < 25) == (1, True), result.output
    assert sorted([*removed, *left]) == sorted(f"body {number}" for number in range(25))
    assert f"deleted {len(removed)}" in result.stdout
    assert f"the archive {archive} cannot be written: No space left on device" in result.stderr
    assert sqs.on_the_loop(lambda: sqs.sqs.depth("orders-dlq").in_flight) == 0


@pytest.mark.parametrize(("size", "sent"), [(100, 0), (400, 3)])
def test_when_the_disk_fills_up_a_restore_ends_and_the_next_one_doubles_nothing(
    sqs: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, sent: int
) -> None:  # SPEC M6
    put(sqs)
    archive, progress = tmp_path / "removed.jsonl", tmp_path / "removed.jsonl.restored"
    run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    with monkeypatch.context() as patch:
        patch.setattr("os.write", small_disk(progress, size))
        result = run(sqs, "restore", str(archive))
    assert (result.exit_code, len(messages(sqs))) == (1 if sent else 2, sent), result.output
    assert (f"restored {sent}" in result.stdout) == (sent > 0)
    assert f"the progress file {progress} cannot be written: No space left on device" in result.stderr
    result = run(sqs, "restore", str(archive))
    assert (result.exit_code, len(messages(sqs))) == (1 if sent else 0, 3)
    assert f"unconfirmed {sent}" in result.stdout or not sent


def test_a_dead_letter_that_may_still_be_there_is_restored_only_by_force_without_a_terminal(
    sqs: Served, tmp_path: Path
) -> None:  # SPEC M6
    """An archive of the first version does not tell what was deleted: all is restored."""
    archive = tmp_path / "removed.jsonl"
    for bodies in (("sure",), BODIES):
        put(sqs, bodies=bodies)
        run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    archive.write_text("".join(archive.read_text().splitlines(keepends=True)[:-1]))  # killed before the confirmation
    left = run(sqs, "restore", str(archive))
    assert (left.exit_code, len(messages(sqs))) == (1, 1)
    assert "3 dead letters of the archive may be in orders-dlq already" in left.stderr
    assert "id-0  unconfirmed: not sent, since it may be in orders-dlq already" in left.stdout
    assert left.stdout.endswith("restored 1, failed 0, skipped 0, unconfirmed 3\n")
    restored = run(sqs, "restore", str(archive), "--force")
    assert (restored.exit_code, len(messages(sqs))) == (0, 4)
    archive.with_name("removed.jsonl.restored").unlink()
    lines = [json.loads(line) for line in archive.read_text().splitlines()]
    archive.write_text("\n".join(json.dumps({**line, "v": 1}) for line in lines if "deleted" not in line))
    assert run(sqs, "restore", str(archive)).stdout == "restored 4, failed 0, skipped 0\n"


def test_of_an_archive_of_two_queues_only_those_of_the_queue_are_asked_about(
    sqs: Served, tmp_path: Path
) -> None:  # SPEC M6
    archive, progress = tmp_path / "removed.jsonl", tmp_path / "removed.jsonl.restored"
    for queue in DLQS:
        put(sqs, queue)
        run(sqs, "remove", "--all", "--force", "--archive", str(archive), queue=queue)
    records = [json.loads(line).get("record", {}) for line in archive.read_text().splitlines()]
    of_fifo = next(each["messageId"] for each in records if each.get("eventSourceARN", "").endswith(".fifo"))
    progress.write_text(json.dumps({"unconfirmed": of_fifo, "queue": DLQS[1], "at": "2026-11-26T12:00:00Z"}) + "\n")
    restored = run(sqs, "restore", str(archive))
    assert (restored.exit_code, len(messages(sqs))) == (0, 3), restored.output
    assert "may be in" not in restored.stderr
    assert "1 dead letter of the archive may be in" in run(sqs, "restore", str(archive), queue=DLQS[1]).stderr


# the package: what may have been applied


def removed(sandbox: Sandbox, folder: Path, *faults: str) -> tuple[Path, dict[str, int]]:
    """Remove all into an archive while faults strike the deletes; return its path, and the outcomes."""
    archive = failed.ArchiveFile(folder / "removed.jsonl")
    with failed.opened("orders-dlq") as inspection:
        dead_letters = [each for polled in inspection.polls() for each in polled]
        for fault in faults:
            sandbox.faults.add(fault, operation="DeleteMessageBatch")
        results = failed.remove_dead_letters(inspection, dead_letters, archive)
    archive.close()
    sandbox.faults.clear()
    return archive.path, outcomes(results)


def restored(archive: Path, **asked: Any) -> list[failed.Result]:
    return list(failed.restore(archive, failed.find("orders-dlq"), **asked))


def test_an_unknown_id_is_reported_and_throttled_deletes_are_repeated(sandbox: Sandbox) -> None:  # SPEC M1
    fill(sandbox, 15)
    assert [(each.id, each.outcome) for each in remove("id-4", "unknown")] == [
        ("id-4", "deleted"),
        ("unknown", "failed"),
    ]
    sandbox.faults.add("throttle", times=None, chance=0.6)
    assert outcomes(remove()) == {"deleted": 14}


def test_what_may_be_deleted_is_neither_kept_nor_restored_unasked(sandbox: Sandbox, tmp_path: Path) -> None:  # SPEC M6
    fill(sandbox, 3)
    archive, counts = removed(sandbox, tmp_path, "lost_answer", "denied")
    assert (counts, there(sandbox)) == ({"unconfirmed": 3}, [])
    asked = list[int]()
    left = restored(archive, twice=lambda count: bool(asked.append(count)))
    assert (outcomes(left), asked) == ({"unconfirmed": 3}, [3])
    assert "it may be in orders-dlq already: its removal was not confirmed" in str(left[0].error)
    assert outcomes(restored(archive, twice=lambda _: True)) == {"restored": 3}
    assert there(sandbox) == ["id-0", "id-1", "id-2"]


@pytest.mark.parametrize("fault", ["denied", "partial_failure"])
def test_what_was_not_deleted_stays_and_is_not_restored(sandbox: Sandbox, tmp_path: Path, fault: str) -> None:
    fill(sandbox, 10)
    archive, counts = removed(sandbox, tmp_path, fault)
    sandbox.faults.add("throttle", operation="SendMessageBatch", times=THROTTLED - 1)
    assert (counts["failed"] > 0, counts.get("deleted", 0)) == (True, 10 - counts["failed"])
    assert places(sandbox) == (0, counts["failed"])
    if fault == "denied":
        with pytest.raises(ConfigurationError, match="no dead letter to restore"):
            restored(archive)
    else:
        assert outcomes(restored(archive)) == {"restored": counts["deleted"]}
    assert there(sandbox) == [f"id-{index}" for index in range(10)]


def test_a_restore_that_was_not_confirmed_is_not_doubled_unasked(sandbox: Sandbox, tmp_path: Path) -> None:  # SPEC M6
    fill(sandbox, 2)
    archive, _ = removed(sandbox, tmp_path)
    sandbox.faults.add("throttle", operation="SendMessageBatch", times=THROTTLED)
    assert outcomes(restored(archive)) == {"failed": 2}
    for fault in ("lost_answer", "denied"):
        sandbox.faults.add(fault, operation="SendMessageBatch")
    assert outcomes(restored(archive)) == {"unconfirmed": 2}
    again = restored(archive)
    assert (outcomes(again), len(there(sandbox))) == ({"unconfirmed": 2}, 2)
    assert "it may be in orders-dlq already: its send to orders-dlq at " in str(again[0].error)


def test_a_send_that_is_confirmed_after_a_lost_answer_says_that_the_message_may_be_there_twice(
    sandbox: Sandbox, tmp_path: Path
) -> None:  # SPEC M6
    fill(sandbox, 1)
    archive, _ = removed(sandbox, tmp_path)
    for queue, send in (("orders-dlq", lambda: restored(archive)), ("orders", retry)):
        sandbox.faults.add("lost_answer", operation="SendMessageBatch")
        assert send()[0].note == f"it may be in {queue} twice: SQS did not answer the first request"
        assert len(sandbox.messages(queue)) == 2
