"""The archive of removed dead letters, and restoring it, against a served SQS."""

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

from tarry.failed.archive import checksum
from tarry.failed.journal import Journal
from tarry.tools.cli.app import app
from tarry.tools.simulator.sqs.message import StoredMessage
from tests.served import Served, served
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

DLQS = ("orders-dlq", "orders-dlq.fifo")
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


def test_of_a_damaged_archive_the_damaged_lines_are_named_and_the_others_restored(sqs: Served, tmp_path: Path) -> None:
    put(sqs)
    archive = tmp_path / "removed.jsonl"
    run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    lines = archive.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"body":"', b'"body":"!')
    archive.write_bytes(b"".join([*lines[:2], b"\x00\xff garbage\n", lines[2], lines[0][:40]]))
    put(sqs, bodies=("more",))
    removed = run(sqs, "remove", "--all", "--force", "--archive", str(archive))  # appends behind the incomplete line
    assert removed.exit_code == 0
    result = run(sqs, "restore", str(archive), "--force")  # the line that says that these were deleted is cut off
    assert (result.exit_code, len(messages(sqs))) == (1, 3)
    assert result.stdout == (
        "line 2  failed: not restored: its checksum does not match\n"
        "line 3  failed: not restored: it is not complete JSON\n"
        "line 5  failed: not restored: it is not complete JSON\n"
        "restored 3, failed 3, skipped 0\n"
    )


def test_an_archive_that_cannot_be_written_removes_nothing(sqs: Served, tmp_path: Path) -> None:
    put(sqs)
    (tmp_path / "file").write_text('{"orders": 1}\n')
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


RECORD: dict[str, Any] = {"messageId": "x", "body": "{}", "attributes": {}, "messageAttributes": {}}
RECORD["eventSourceARN"] = arn("orders-dlq")


def line_of(record: dict[str, Any]) -> bytes:
    """Return the line of a record that was changed, with its checksum."""
    return json.dumps({"v": 2, "id": "x", "sum": checksum(record), "record": record}).encode()


def test_a_record_that_was_changed_along_with_its_checksum_is_not_restored(sqs: Served, tmp_path: Path) -> None:
    archive = tmp_path / "removed.jsonl"
    changes = [*({name: None} for name in RECORD), {"body": 7}, {"attributes": []}, {"messageAttributes": {"a": "b"}}]
    archive.write_bytes(b"\n".join([line_of(RECORD), *(line_of(RECORD | changed) for changed in changes)]))
    result = run(sqs, "restore", str(archive), "--force")
    assert (result.exit_code, len(messages(sqs))) == (1, 1), result.output
    why = "not restored: its record lacks a part, or has one of another type"
    named = [f"line {index}  failed: {why}" for index, _ in enumerate(changes, 2)]
    assert result.stdout.splitlines() == [*named, f"restored 1, failed {len(changes)}, skipped 0"]


def test_lines_of_an_archive_that_cannot_be_read_are_named_and_the_others_are_restored(
    sqs: Served, tmp_path: Path
) -> None:
    lines = [b'{"v":3}', b"[" * 100_000, b"\xff\x00", b"9" * 6_000, b'{"v":[]}', b'{"v":2,"deleted":7}']
    put(sqs)
    archive = tmp_path / "removed.jsonl"
    run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    archive.write_bytes(b"\n".join([*lines, archive.read_bytes()]))
    archive.with_name("removed.jsonl.restored").write_bytes(b"\n".join([*lines, b""]))
    result = run(sqs, "restore", str(archive))
    assert (result.exit_code, len(messages(sqs))) == (1, 3), result.output
    for index, line in enumerate(result.stdout.splitlines()[:-1], 1):
        assert line.startswith(f"line {index}  failed: not restored: ")
    assert result.stdout.endswith("restored 3, failed 6, skipped 0\n")


def test_an_archive_of_a_later_version_is_refused_with_its_version(sqs: Served, tmp_path: Path) -> None:
    put(sqs)
    archive = tmp_path / "removed.jsonl"
    run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    archive.write_bytes(archive.read_bytes().replace(b'{"v":2,', b'{"v":3,'))
    result = run(sqs, "restore", str(archive))
    assert (result.exit_code, messages(sqs)) == (2, [])
    why = "it is of version 3, and this tarry reads archives up to version 2 in line 1"
    assert f"{archive} has no dead letter to restore ({why})" in result.stderr


def test_a_dead_letter_that_may_still_be_there_is_restored_only_by_force_without_a_terminal(
    sqs: Served, tmp_path: Path
) -> None:  # SPEC M6
    put(sqs)
    archive = tmp_path / "removed.jsonl"
    run(sqs, "remove", "--all", "--force", "--archive", str(archive))
    archive.write_text("".join(archive.read_text().splitlines(keepends=True)[:-1]))  # killed before the confirmation
    left = run(sqs, "restore", str(archive))
    assert (left.exit_code, messages(sqs)) == (1, [])
    assert "3 dead letters of the archive may be in orders-dlq already" in left.stderr
    assert "id-0  unconfirmed: not sent, since it may be in orders-dlq already" in left.stdout
    assert left.stdout.endswith("restored 0, failed 0, skipped 0, unconfirmed 3\n")
    restored = run(sqs, "restore", str(archive), "--force")
    assert (restored.exit_code, len(messages(sqs))) == (0, 3)


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
