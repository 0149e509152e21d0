"""`tarry failed` as a separate process against a served SQS model: stopped by signals, at a terminal; and its runbook.

The runbook is docs/guides/operating-dlqs.md: every command of it, in order.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from tarry.tools.cli.app import app
from tarry.tools.local.instances import announced
from tests.command import Command, rest_of, some_lines
from tests.integration.failed.motoshop import TEMPLATE
from tests.pages import ROOT, Page
from tests.processes import PATIENCE_SECONDS, end
from tests.served import served
from tests.shop import ServedShop
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn


def everywhere(shop: ServedShop) -> tuple[list[int], list[int], int]:
    """Return what is in orders, in orders-dlq, and how many of orders-dlq are invisible."""
    return shop.bodies("orders"), sorted(shop.bodies("orders-dlq")), shop.in_flight()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_after_a_signal_the_current_messages_are_finished_and_the_others_released(
    shop: ServedShop, number: signal.Signals
) -> None:  # SPEC M5
    shop.put(150)
    with shop.started("retry", "--where", "body.id >= 0", "--json") as process:
        lines = some_lines(process, 15)
        process.send_signal(number)
        lines += rest_of(process)
    assert process.returncode == 128 + number
    done = [json.loads(line)["id"] for line in lines]
    assert {f"id-{each}" for each in shop.bodies("orders")} == set(done)
    assert len(done) == len(set(done)) < 150
    assert sorted(shop.bodies("orders") + shop.bodies("orders-dlq")) == list(range(150))
    assert shop.in_flight() == 0
    assert f"retried {len(done)}, failed 0" in shop.guidance()
    assert f"{number.name}: stopped after the current dead letters; " in shop.guidance()
    assert " of orders-dlq were released" in shop.guidance()


def test_when_the_output_is_closed_the_current_messages_are_finished_and_counted(
    shop: ServedShop,
) -> None:  # SPEC M5, M6
    shop.put(60)
    with shop.started("retry", "--all", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        assert process.wait(PATIENCE_SECONDS) == 1
    retried = shop.bodies("orders")
    assert 10 <= len(retried) < 60
    assert f"retried {len(retried)}, failed 0" in shop.guidance()
    assert sorted([*retried, *shop.bodies("orders-dlq")]) == list(range(60))
    assert shop.in_flight() == 0


# at a terminal


PROMPT = "[q]uit "


def test_each_dead_letter_is_decided_by_one_key(shop: ServedShop) -> None:  # SPEC M3
    """Retry, skip, delete and quit; each dead letter is offered once, with a summary."""
    shop.put(5, traceback='  File "/var/task/app.py", line 12, in handler\n    charge(order)\n', message="\x1b[2Jno")
    terminal = shop.terminal("retry")
    first = terminal.until(PROMPT)
    shown = ["about 5 dead letters in orders-dlq", "id-0", "app.CardDeclined: \\x1b[2Jno", "line 12, in handler"]
    assert [text for text in (*shown, "[r]etry  [e]dit  [d]elete  [s]kip") if text not in first] == []
    assert "\x1b[2J" not in first
    for key in "rsxd":  # x does nothing
        terminal.press(key)
        if key in "rs":
            terminal.until(PROMPT)
    for key in "ndy":  # a delete must be confirmed
        terminal.until("Permanently delete this dead letter? [y/N] " if key != "d" else PROMPT)
        terminal.press(key)
    terminal.until(PROMPT)
    terminal.press("r")
    terminal.until(PROMPT)
    assert shop.in_flight() == 2  # the one that was skipped, and the one that is shown
    terminal.press("q")
    assert terminal.exit_code() == 0
    assert "retried 2, failed 0, skipped 1, deleted 1" in terminal.seen
    assert "Dead letters are written to " in terminal.seen
    assert everywhere(shop) == ([0, 3], [1, 4], 0)


def test_an_edited_body_is_shown_before_it_is_sent(shop: ServedShop) -> None:  # SPEC M3, M4
    shop.put(1, reason="undecodable")
    editor = shop.folder / "editor"
    editor.write_text('#!/bin/sh\nprintf \'{"id": 77}\' > "$1"\n')
    editor.chmod(0o755)
    terminal = shop.terminal("retry", EDITOR=str(editor), VISUAL="")
    assert "[r]etry" not in terminal.until(PROMPT)  # it cannot be decoded yet
    terminal.press("e")
    edited = terminal.until(PROMPT)
    assert '{"id": 77}' in edited
    assert "[r]etry" in edited
    terminal.press("r")
    assert terminal.exit_code() == 0
    assert shop.bodies("orders") == [77]


@pytest.mark.parametrize(("how", "code"), [("\x03", 130), ("\x04", 0), ("TERM", 143), ("HUP", 129)])
def test_at_the_prompt_the_command_ends_at_once_and_releases_everything(
    shop: ServedShop, how: str, code: int
) -> None:  # SPEC M5
    """It ends at Ctrl-C, at the end of the input, and at a signal."""
    shop.put(3)
    terminal = shop.terminal("retry")
    terminal.until(PROMPT)
    if how in ("TERM", "HUP"):
        terminal.send_signal(signal.Signals[f"SIG{how}"])
    else:
        terminal.press(how)
    assert terminal.exit_code() == code
    assert "retried 0, failed 0, skipped 0, deleted 0" in terminal.seen
    if code:
        name = signal.Signals(code - 128).name
        assert f"{name}: stopped; 1 dead letter of orders-dlq was released" in terminal.seen
    assert everywhere(shop) == ([], [0, 1, 2], 0)


def test_named_dead_letters_are_shown_before_they_are_retried_or_removed(shop: ServedShop) -> None:  # SPEC M3
    """By whole ids or their beginnings: retry asks for each, remove once; --force only shows them."""
    shop.put(12)
    terminal = shop.terminal("retry", "id-10", "id-3")
    assert re.search(r"(?s)2 dead letters in orders-dlq.*id-10\S+  in orders-dlq", terminal.until(PROMPT))
    terminal.press("r")
    assert re.search(r"id-3\S+  in orders-dlq", terminal.until(PROMPT))
    terminal.press("s")
    assert terminal.exit_code() == 0
    assert shop.bodies("orders") == [10]
    terminal = shop.terminal("remove", "id-3", "id-5")
    assert "id-5  app.CardDeclined: no" in terminal.until("Permanently delete 2 dead letters? [y/N] ")
    terminal.press("y")
    assert terminal.exit_code() == 0
    terminal = shop.terminal("retry", "id-7", "--force")
    assert terminal.exit_code() == 0
    assert "id-7  app.CardDeclined: no\r\n" in terminal.seen
    assert everywhere(shop) == ([10, 7], [0, 1, 2, 4, 6, 8, 9, 11], 0)


def test_an_operation_on_many_dead_letters_asks_once(shop: ServedShop) -> None:  # SPEC M3
    shop.put(3)
    terminal = shop.terminal("remove", "--all")
    assert "Permanently delete all dead letters in orders-dlq (about 3)? [y/N] " in terminal.until("[y/N] ")
    terminal.press("n")
    assert terminal.exit_code() == 0
    assert len(shop.bodies("orders-dlq")) == 3


# with the code of the function, and broken outputs

APP = """
import time
from tarry import consumer

@consumer
def handler(message):
    print("started", flush=True)
    time.sleep(60)
"""


def test_a_handler_that_does_not_end_is_interrupted_by_the_second_signal(shop: ServedShop) -> None:  # SPEC M5
    shop.put(2)
    (shop.folder / "template.yaml").write_text(TEMPLATE)
    (shop.folder / "code").mkdir()
    (shop.folder / "code" / "app.py").write_text(APP)
    with shop.started("retry", "id-0", "id-1", "--via", "local", "--json") as process:
        shop.until(lambda: "started" in shop.guidance())  # the output of a handler goes to stderr
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None  # the current message is finished first
        process.send_signal(signal.SIGINT)
        lines = rest_of(process)
    assert process.returncode == 130
    [result] = [json.loads(line) for line in lines]
    assert (result["outcome"], result["error"]) == ("failed", "interrupted; the dead letter is unchanged")
    assert everywhere(shop) == ([], [0, 1], 0)


def test_when_the_output_cannot_be_written_the_audit_has_all_that_was_done(shop: ServedShop) -> None:  # SPEC M6
    shop.put(30)
    paths = ((os.devnull, "r"), ("/dev/full", "w"), (shop.folder / "stderr", "w"))
    with ExitStack() as files:
        nothing, full, errors = (files.enter_context(Path(path).open(mode)) for path, mode in paths)
        streams = (nothing.fileno(), full.fileno(), errors.fileno())
        arguments = ["failed", "retry", "--all", "--json", *shop.where]
        command = Command(arguments, streams, shop.folder, {**shop.environment(), "XDG_STATE_HOME": str(shop.folder)})
        try:
            assert command.wait() == 1
        finally:
            end(command)
    last = json.loads((shop.folder / "tarry/audit.jsonl").read_text().splitlines()[-1])
    assert last["outcomes"] == {"retried": len(shop.bodies("orders"))}
    assert "the output cannot be written (No space left on device); what is done is in the audit" in shop.guidance()


def test_without_a_place_the_question_names_it(shop: ServedShop, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC M3
    shop.put(2)
    (shop.folder / "template.yaml").write_text("Resources: {}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shop.folder))
    shop.where = ["--queue", "orders-dlq"]
    place = f"local {shop.sqs.url.removeprefix('http://')}"
    for key, left in (("n", 2), ("y", 0)):
        with announced(shop.sqs.url, shop.folder / "template.yaml"):
            terminal = shop.terminal("retry", "--all", XDG_STATE_HOME=str(shop.folder))
            question = terminal.until("[y/N] ").replace("\r", "")
            assert question == f"{place}\nRetry dead letters of orders-dlq at {place}? [y/N] "
            terminal.press(key)
            if key == "y":
                terminal.until("Retry all dead letters in orders-dlq (about 2)? [y/N] ")
                terminal.press("y")
            assert terminal.exit_code() == 0
        assert len(shop.bodies("orders-dlq")) == left


# the runbook

PAGE = Page(ROOT / "docs/guides/operating-dlqs.md")
KINDS = {
    "636e0ad2": ("app.GatewayTimeout", "9f2c61d0a4be", 24),
    "9f164b01": ("app.CardDeclined", "51aa03b8c7d2", 3),
    "77e01651": ("app.LockTimeout", "0c3d99aa14f2", 5),
    "d8053b4f": ("KeyError", "17b2c0ffee00", 4),
}


class EventSourceMapping:
    """That of orders, as Lambda describes it."""

    state = "Enabled"

    def __call__(self, method: str, path: str, query: Any, body: Any) -> tuple[int, dict[str, Any]]:
        if method == "PUT":
            self.state = "Enabled" if body["Enabled"] else "Disabled"
        function = "arn:aws:lambda:us-east-1:123456789012:function:handler"
        found = {"UUID": str(UUID(int=1)), "EventSourceArn": arn("orders"), "FunctionArn": function}
        found["State"] = self.state
        return 200, {"EventSourceMappings": [found]} if path.rstrip("/").endswith("mappings") else found


def put(sqs: Any, prefix: str, kind: str, fingerprint: str, count: int) -> None:
    for number in range(count):
        body = json.dumps({"id": number, "total": 100})
        envelope = envelope_of(body, f"{prefix}-{number:02}" if number else prefix, type=kind, fingerprint=fingerprint)
        attributes = {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}}
        parameters = {"QueueUrl": sqs.url("orders-dlq"), "MessageBody": body, "MessageAttributes": attributes}
        sqs.call("SendMessage", parameters)


def test_every_command_of_the_runbook_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M1, M2, M3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)
    monkeypatch.setattr("tarry.tools.cli.failed.retrying.STEPS_OF_POLL", 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").touch()
    blocks = [block for block in PAGE.blocks if block.language == "sh"]
    assert [block for block in blocks if block.comment not in {"runbook", "not run: needs AWS"}] == []
    outputs = {}
    with served() as sqs:
        sqs.sqs.event_source_mappings = mapping = EventSourceMapping()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
        sqs.queue("orders-dlq")
        policy = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15})
        sqs.queue("orders", RedrivePolicy=policy, VisibilityTimeout="1")  # a canary is watched for that long
        sqs.on_the_loop(lambda: [put(sqs.sqs, prefix, *kind) for prefix, kind in KINDS.items()])
        for words in (words for block in blocks if block.comment == "runbook" for _, words in block.commands()):
            command = shlex.join(words)
            if words[0] == "tarry":
                asked = ["--force"] if words[:3] == ["tarry", "failed", "remove"] else []  # there is no terminal
                result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words[1:], *asked])
                assert result.exit_code == 0, (command, result.stdout, result.stderr)
                outputs[command] = result.stdout
            elif words[0] == "tail":
                paths = [str(Path(word).expanduser()) for word in words]
                outputs[command] = subprocess.run(paths, capture_output=True, text=True, check=True).stdout
            else:
                assert words in (["test_636e0ad2.py"], ["failure.json"])  # the file for the output
        assert mapping.state == "Enabled"
        moved = sqs.on_the_loop(lambda: (len(sqs.sqs.peek("orders")), len(sqs.sqs.peek("orders-dlq"))))
    assert outputs["tarry pause --queue orders"].startswith("orders -> handler: Enabled -> Disabled\n")
    assert outputs["tarry failed"]
    test = outputs["tarry failed show --queue orders-dlq 636e0ad2 --template template.yaml --pytest"]
    assert "def test_dead_letter_636e0ad2(" in test
    canaries = outputs["tarry failed retry --queue orders-dlq --group 9f2c61d0a4be --canary 10"]
    assert canaries == "retried 24, failed 0, skipped 0\n"
    audit = outputs["tail -n 10 '~/.local/state/tarry/audit.jsonl'"].splitlines()
    assert [json.loads(line)["command"] for line in audit[1::2]] == [
        "tarry resume", "tarry failed retry", "tarry failed retry", "tarry failed remove", "tarry failed restore",
    ]  # fmt: skip
    assert moved == (sum(count for *_, count in KINDS.values()), 0)  # restored ones too are moved by SQS at the end
