"""`tarry failed` on moto: output and exit codes."""

import json
import sys
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tarry.tools.cli.app import app
from tarry.tools.cli.failed.rendering import shortened_ids, table
from tests.integration.failed.motoshop import TEMPLATE, TIMEOUT, MotoShop, editor, policy
from tests.unit.failed.dead_letters import recorded_dead_letter
from tests.wire import arn

AT = "AWS 123456789012 us-east-1\n"
HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold red]money[/] \u202egnp.exe \x9b31m"

# the summary, and groups


def test_without_a_command_all_queues_are_summarized(shop: MotoShop) -> None:  # SPEC M2
    """The summary says how many died of what, since when, how often, and which commands to type next."""
    shop.template()
    shop.sqs.create_queue(QueueName="spare-dlq")
    shop.put_both()
    result = shop.run(queue=None, columns="80")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:5] == [
        "orders-dlq: about 11 dead letters",
        lines[1],
        "  6  timeout00000  app.Timeout: no answer",
        "     2026-11-21 08:31 UTC; for example id-9",
        "  4  9f2c61d0a4be  app.CardDeclined: no",
    ]
    assert lines[1].startswith("2026-11-21 08:21 to ")
    assert lines[6] == "  1  (none)  no failure record (not dead-lettered by tarry)"
    assert max(map(len, lines)) <= 80
    assert result.stderr.splitlines()[-2:] == [
        "  tarry failed show id-9 --queue orders-dlq --aws",
        "  tarry failed retry --group timeout00000 --canary 10 --queue orders-dlq --aws",
    ]
    assert shop.depths() == (0, 11, 0)
    [summary] = shop.objects("--queue", "orders-dlq", queue=None)
    assert (summary["queue"], summary["about"]) == ("orders-dlq", 11)
    assert [group["count"] for group in summary["groups"]] == [6, 4, 1]
    shop.queue("empty-dlq")
    [nothing] = shop.objects(queue="empty-dlq")
    assert (nothing["about"], nothing["scanned"], nothing["groups"]) == (0, 0, [])
    result = shop.run(queue="empty-dlq")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no dead letters: empty-dlq\n", AT)
    shop.put(40, first=20)
    sampled = shop.run("--sample", "10")
    assert "orders-dlq: about 51 dead letters\n" in sampled.stdout
    assert "Of a sample of 10:" in sampled.stdout
    assert "scanned 10 of about 51 in 2 requests" in sampled.stderr


def test_one_error_in_several_queues_is_one_cause_with_a_total(shop: MotoShop) -> None:
    """Its fingerprints differ, since two handlers have it. SPEC M2"""
    shop.put_in_worse(2, **(TIMEOUT | {"fingerprint": "of-jobs"}))
    shop.put_both()
    for command in ((), ("show", "--group-by", "fingerprint")):
        lines = shop.run(*command, queue=None, columns="80").stdout.splitlines()
        assert lines[lines.index("13 dead letters in all queues, by cause") + 1 :] == [
            "  8  app.Timeout: no answer",
            "     6 in orders-dlq, 2 in worse",
            "  4  app.CardDeclined: no",
            "     4 in orders-dlq",
            "  1  no failure record (not dead-lettered by tarry)",
            "     1 in orders-dlq",
        ]
        assert "by cause" not in shop.run(*command).stdout


def test_groups_are_shown_and_acted_on(shop: MotoShop) -> None:  # SPEC M2, M3
    shop.put_both()
    result = shop.run("show", "--group-by", "fingerprint", "--where", "reason != null", columns="80")
    assert result.stdout.splitlines()[0] == "orders-dlq: 10 dead letters by fingerprint"
    groups = shop.objects("show", "--group-by", "type")
    assert [(each["value"], each["count"], each["where"]) for each in groups] == [
        ("app.Timeout", 6, ["type = app.Timeout"]),
        ("app.CardDeclined", 4, ["type = app.CardDeclined"]),
        (None, 1, ["type = null"]),
    ]
    assert len(shop.objects("show", "--group", "timeout00000")) == 6
    assert shop.run("retry", "--group", "timeout00000").stdout == "retried 6, failed 0, skipped 0\n"
    result = shop.run("remove", "--group", "9f2c61d0a4be", "--until", "2026-11-21T09:00Z", "--force")
    assert result.stdout == "deleted 4, failed 0\n"
    assert shop.depths() == (6, 1, 0)


def test_a_group_that_does_not_exist_is_an_error_and_a_filter_that_matches_none_is_not(
    shop: MotoShop,
) -> None:  # SPEC M6
    shop.put(3)
    for command in ("show", "show --group-by error", "retry", "retry --dry-run", "remove --force"):
        result = shop.run(*command.split(), "--group", "nope")
        assert (result.exit_code, result.stderr.splitlines()[-2:]) == (
            1,
            [
                "tarry: no dead letter in orders-dlq matches fingerprint = nope",
                "The groups there are: tarry failed show --group-by fingerprint --queue orders-dlq --aws",
            ],
        )
        result = shop.run(*command.split(), "--where", "attempts > 90", "--since", "2026-01-01")
        assert result.exit_code == 0
        assert "matches dead-lettered since 2026-01-01T00:00:00Z and attempts > 90" in result.stderr
        assert shop.depths() == (0, 3, 0)


# show


def test_show_prints_a_table_to_stdout_and_how_many_it_scanned_to_stderr(shop: MotoShop) -> None:  # SPEC M2, M6
    shop.put(3)
    shop.put(recorded=False)
    result = shop.run("show")
    assert (result.exit_code, result.stderr) == (0, f"{AT}orders-dlq: scanned 4 of about 4 in 4 requests\n")
    lines = result.stdout.splitlines()
    assert lines[0] == "orders-dlq"
    assert lines[1].split() == ["id", "when", "(UTC)", "error", "attempts", "origin"]
    assert any("id-1" in line and "app.CardDeclined: no" in line and "orders" in line for line in lines)
    assert any("no failure record (not dead-lettered by tarry)" in line for line in lines)
    [shown] = shop.objects("show", "--where", "attempts = 2")
    assert (shown["id"], shown["origin"]) == ("id-1", arn("orders"))
    [event] = map(json.loads, shop.run("show", "--event", "id-1", "id-0").stdout.splitlines())
    assert [(record["eventSourceARN"], record["body"]) for record in event["Records"]] == [
        (arn("orders"), '{"id": 1}'), (arn("orders"), '{"id": 0}'),
    ]  # fmt: skip
    shop.put(60)
    assert "scanned 50 of about 64" in shop.run("show").stderr
    assert len(shop.objects("show", "--max", "7")) == 7
    assert shop.depths() == (0, 64, 0)
    shop.queue("worse")
    shop.sqs.set_queue_attributes(QueueUrl=shop.dlq, Attributes={"RedrivePolicy": policy("worse", 5)})
    assert "after 5 receives SQS moves a dead letter to worse" in shop.run("show").stderr  # PLATFORM 22


def test_in_a_pipe_the_table_is_as_wide_as_columns_and_an_undecodable_body_has_its_id_once(shop: MotoShop) -> None:
    problem = "the body of message id-0 does not fit Invoice: total: Field required"
    shop.put(reason="undecodable", type="tarry.errors.Undecodable", message=problem)
    shown = shop.run("show", columns="60").stdout
    assert (max(map(len, shown.splitlines())) <= 60, "undecodable: the body does" in shown) == (True, True)


def test_show_with_an_id_prints_all_details(shop: MotoShop) -> None:  # SPEC M2
    """The text of the error is after the traceback, and no history repeats it."""
    frames = '  File "/var/task/app.py", line 12, in handler\n    charge(order)'
    shop.put(2, traceback=frames, history=[{"attempt": 1, "at": "2026-11-21T08:00:00Z", "error": "Earlier: one"}])
    shown = shop.run("show", "id-1").stdout
    for text in ("exhausted, after 2 attempts", "9f2c61d0a4be", frames, "Earlier: one", '{"id": 1}'):
        assert text in shown
    entry = {"at": "2026-11-21T08:21:43Z", "attempt": 4, "error": "app.LedgerDown"}
    traceback = f"Traceback (most recent call last):\n{frames}\napp.LedgerDown"
    shop.put(first=3, type="app.LedgerDown", message="no answer", traceback=traceback, attempts=4, history=[entry])
    shown = shop.run("show", "id-3").stdout
    assert ("charge(order)\napp.LedgerDown: no answer\n" in shown, "history" in shown) == (True, False)
    assert "dead letter 'unknown' was not found in orders-dlq" in shop.refused("show", "unknown", code=1)
    shop.put(recorded=False)
    [bare] = shop.objects("show", "--where", "type = null")
    shown = shop.run("show", bare["id"]).stdout
    assert "no failure record (not dead-lettered by tarry)" in shown
    assert f'filter @message like "{bare["id"]}"' in shown


def test_hostile_text_is_harmless(shop: MotoShop) -> None:  # SPEC M2
    """Control characters in a message do not reach the terminal, and markup in it has no effect."""
    body = "\u202e \U0001f600 [link=x]body[/link]"
    shop.put(body=body, message=HOSTILE, type="[red]Type", function=HOSTILE, fingerprint="\x1b]0;f\x07")
    for arguments in ("show", "show id-0", "show --json", "show --event", "", "show --group-by fingerprint"):
        result = shop.run(*arguments.split())
        assert result.exit_code == 0
        assert not set(result.output) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
        if "--json" not in arguments and "--event" not in arguments:
            assert "[bold red]money[/]" in result.stdout
            assert "\\x1b[2J" in result.stdout


@pytest.mark.parametrize(
    ("columns", "last_title", "own_id"),
    [
        (80, "attempts", "aaaaaaaaa1"),
        (99, "attempts", "aaaaaaaaa1"),
        (107, "attempts", "aaaaaaaaa1-2096-46ab-9069-6449637203"),
        (120, "origin", "aaaaaaaaa1-2096-46ab-9069-6449637203"),
    ],
)
def test_in_a_narrow_terminal_the_table_keeps_the_error(columns: int, last_title: str, own_id: str) -> None:
    """It leaves out the origin, then the end of the ids, as far as they stay different."""
    ids = [f"aaaaaaaaa{number}-2096-46ab-9069-6449637203" for number in range(3)]
    error = "connection to the gateway was refused, no retry"
    console = Console(file=StringIO(), width=columns)
    console.print(table([recorded_dead_letter(message_id=each, message=error) for each in ids], columns))
    lines = console.file.getvalue().splitlines()
    assert (lines[0].split()[:5], lines[0].split()[-1]) == (["id", "when", "(UTC)", "error", "attempts"], last_title)
    row = next(line for line in lines if line.split()[0] == own_id)
    assert "app.CardDeclined: connection to the" in row
    assert max(map(len, lines)) <= columns
    assert shortened_ids(["0123456789", "abcdefghij"]) == ["01234567", "abcdefgh"]


# retry and remove


def test_retry_with_json_prints_each_result(shop: MotoShop) -> None:  # SPEC M6
    shop.put(30)
    result = shop.run("retry", "id-20", "unknown", "id-3", "--json")
    assert result.exit_code == 1
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"id": "unknown", "outcome": "failed", "error": "not found in orders-dlq"},
        {"id": "id-20", "outcome": "retried"},
        {"id": "id-3", "outcome": "retried"},
    ]
    lines = result.stderr.splitlines()
    assert lines[1:3] == ["id-20  app.CardDeclined: no", "id-3  app.CardDeclined: no"]
    assert lines[-1] == "retried 2, failed 1, skipped 0"
    assert shop.depths() == (2, 28, 0)
    assert shop.run("retry", "id-4").stdout == "id-4  retried\nretried 1, failed 0, skipped 0\n"


@pytest.mark.parametrize(
    ("command", "done", "sent"),
    [
        ("retry --all", "retried 2, failed 0, skipped 0", 2),
        ("remove --all --force --yes-delete orders-dlq", "deleted 2, failed 0", 0),
    ],
)
def test_all_are_those_of_before_the_command_and_new_ones_are_counted(
    shop: MotoShop, command: str, done: str, sent: int
) -> None:  # SPEC M3
    shop.put(2)
    shop.put(1, first=7, failed_at="2099-01-01T00:00:00Z")
    result = shop.run(*command.split())
    assert (result.exit_code, result.stdout) == (0, f"{done}\n")
    assert "orders-dlq: 1 dead letter came after the command began, or after the preview, and is left" in result.stderr
    assert shop.depths() == (sent, 1, 0)


def test_the_beginning_of_an_id_must_be_unique_and_conditions_select(shop: MotoShop) -> None:  # SPEC M1, M3
    shop.put(12, first=100)
    assert shop.refused("retry", "id-105", "id-11").splitlines()[-1] == (
        "tarry: 2 ids begin with 'id-11': id-110, id-111; give more characters of the id"
    )
    assert shop.depths() == (0, 12, 0)
    assert shop.objects("remove", "id-111", "--force") == [{"id": "id-111", "outcome": "deleted"}]
    result = shop.run("retry", "--where", "attempts > 108", "--json")
    assert sorted(json.loads(line)["id"] for line in result.stdout.splitlines()) == ["id-108", "id-109", "id-110"]
    assert "the messages that it is sending (up to 10) may be delivered twice" in result.stderr
    assert shop.run("remove", "--where", "body.id < 104", "--force").stdout == "deleted 4, failed 0\n"
    assert shop.depths() == (3, 4, 0)


def test_a_dry_run_prints_what_would_be_done_to_each_and_the_retry_does_that(shop: MotoShop) -> None:  # SPEC M3, M4, M6
    shop.put_both()
    shop.put(1, first=20, reason="undecodable")
    result = shop.run("retry", "--all", "--dry-run", "--canary", "5")
    *lines, last = result.stdout.splitlines()
    assert last == "would retry 10 dead letters, fail 1, skip 1; nothing was changed"
    assert "id-3  would be sent to orders" in lines
    assert "id-20  would be skipped: its body cannot be decoded: edit or remove it" in lines
    assert sum("would fail: the origin of dead letter" in line for line in lines) == 1
    assert "5 of these first, and the others only if none of the 5 comes back" in result.stderr
    assert (result.exit_code, shop.depths()) == (1, (0, 12, 0))
    planned = {"id": "id-3", "would": "retried", "queue": "orders"}
    assert shop.objects("retry", "id-3", "--dry-run") == [planned]
    shop.put(30, first=30)
    result = shop.run("retry", "--all", "--concurrency", "4")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "retried 40, failed 1, skipped 1")
    assert "id-20  skipped: its body cannot be decoded: edit or remove it" in result.stdout
    assert "name a queue to send it to (--to QUEUE)" in result.stdout
    assert "the messages that it is sending (up to 40) may be delivered twice" in result.stderr
    assert shop.depths() == (40, 2, 0)


def test_retry_sends_an_edited_body(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # SPEC M3, M6
    """A body that is no longer JSON is refused; the output of the editor does not go to stdout."""
    shop.put(2, reason="undecodable")
    editor(shop.folder, monkeypatch, "1}", "7}")
    assert shop.objects("retry", "id-1", "--edit") == [{"id": "id-1", "outcome": "retried"}]
    [message] = shop.sqs.receive_message(QueueUrl=shop.orders, MessageAttributeNames=["All"])["Messages"]
    record = json.loads(message["MessageAttributes"]["Tarry"]["StringValue"])
    assert (message["Body"], record["id"], "edited" in record) == ('{"id": 7}', "id-1", True)
    editor(shop.folder, monkeypatch, "}", "")
    [result] = shop.objects("retry", "id-0", "--edit")
    assert (result["outcome"], "was JSON, the edited body is not" in result["error"]) == ("failed", True)
    (shop.folder / "editor").write_text("#!/bin/sh\necho the screen\n")
    assert shop.objects("retry", "id-0", "--edit") == [{"id": "id-0", "outcome": "skipped"}]
    assert capfd.readouterr() == ("", "the screen\n")
    assert "you did not change its body" in shop.run("retry", "id-0", "--edit").stdout
    monkeypatch.delenv("EDITOR")
    assert "no editor is set: set EDITOR" in shop.run("retry", "id-0", "--edit").stdout
    assert len(shop.objects("show")) == 1


def test_via_local_runs_the_handler_of_the_template(shop: MotoShop) -> None:  # SPEC M3
    """Also for a queue of the template that SQS does not list as a source."""
    shop.template()
    shop.put(5)
    result = shop.run("retry", "--all", "--via", "local", "--json", queue=None)
    assert result.exit_code == 1
    assert sorted((each["id"], each["outcome"]) for each in map(json.loads, result.stdout.splitlines())) == [
        ("id-0", "retried"), ("id-1", "retried"), ("id-2", "retried"), ("id-3", "failed"), ("id-4", "failed"),
    ]  # fmt: skip
    assert "handling orders orders" in result.stderr
    assert shop.depths() == (0, 2, 0)
    failures = [each["failure"] for each in shop.objects("show", queue=None)]
    assert {(failure["attempts"], failure["message"]) for failure in failures} == {(5, "too many"), (6, "too many")}
    shop.sqs.set_queue_attributes(QueueUrl=shop.orders, Attributes={"RedrivePolicy": ""})
    shop.put(2)
    assert shop.objects("retry", "id-1", "--via", "local") == [{"id": "id-1", "outcome": "retried"}]


def test_via_local_exits_with_2_for_a_queue_without_a_function(shop: MotoShop) -> None:  # SPEC M3
    shop.template(TEMPLATE + "  Too: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq-too}}\n")
    shop.put(2, origin="orders-dlq-too")
    shop.queue("orders-dlq-too")
    error = shop.refused("retry", "id-1", "id-0", "--via", "local")
    assert "template.yaml: no function consumes orders-dlq-too" in error
    result = shop.run("retry", "--all", "--via", "local", "--json")
    assert [json.loads(line)["outcome"] for line in result.stdout.splitlines()] == ["failed", "failed"]
    assert (result.exit_code, shop.depths()) == (2, (0, 2, 0))
    (shop.folder / "code/app.py").write_text("import nowhere_at_all")
    assert "No module named 'nowhere_at_all'" in shop.refused("retry", "--all", "--via", "local")


def test_ids_are_looked_for_in_all_queues(shop: MotoShop) -> None:  # SPEC M1
    """One that is in none of them is reported once; the beginning of one must be unique among all."""
    shop.put_in_worse(2)
    shop.put(1, first=9, url=shop.queue("worse"), origin="jobs")
    shop.put(2)
    unknown = {"id": "unknown", "outcome": "failed", "error": "not found in orders-dlq, worse"}
    for number, (command, outcome) in enumerate((("retry", "retried"), ("remove", "deleted"))):
        result = shop.run(command, "unknown", "--json", "--force", queue=None)
        assert (result.exit_code, json.loads(result.stdout)) == (1, unknown)
        ambiguous = shop.run(command, "id-", "--force", queue=None).stderr
        assert (f"{3 - number} ids begin with 'id-': " in ambiguous, "id-1, id-9; give" in ambiguous) == (True, True)
        assert shop.objects(command, f"job-{number + 1}", f"id-{number}", "--force", queue=None) == [
            {"id": f"job-{number + 1}", "outcome": outcome},
            {"id": f"id-{number}", "outcome": outcome},
        ]
    assert shop.depths() == (1, 0, 0)


def test_remove_all_at_aws_needs_the_name_of_each_queue_typed_or_as_an_option(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    shop.template()
    shop.put(2)
    for queue in (None, "orders-dlq"):
        assert shop.refused("remove", "--all", "--force", queue=queue) == (
            f"{AT}tarry: remove --all at AWS must name the queue that it empties: add --yes-delete orders-dlq\n"
        )
    assert "but the selected queues are orders-dlq" in shop.refused("remove", "--all", "--yes-delete", "orders")
    error = shop.refused("remove", "--where", "attempts = 1", "--yes-delete", "orders-dlq")
    assert "--yes-delete confirms --all" in error
    with monkeypatch.context() as at_a_terminal:
        at_a_terminal.setattr(sys.modules["tarry.tools.cli.failed.remove"], "has_terminal", lambda: True)
        for typed, code, left in (("y\n", 0, 2), ("", 0, 2), (" orders-dlq\n", 0, 0)):
            result = shop.run("remove", "--all", "--force", typed=typed)
            assert "Type the queue's name: " in result.stderr
            assert (result.exit_code, shop.depths()) == (code, (0, left, 0)), result.stderr
    shop.put(2)
    assert shop.run("remove", "--all", "--force", "--yes-delete", "orders-dlq").exit_code == 0
    assert shop.depths() == (0, 0, 0)


def test_a_dead_letter_without_a_known_target_exits_with_2(shop: MotoShop) -> None:  # SPEC M3
    shop.put(recorded=False)
    [dead_letter] = shop.objects("show")
    for selected in ("--all", dead_letter["id"]):
        result = shop.run("retry", selected)
        assert (result.exit_code, "--to QUEUE" in result.output) == (2, True)
    shop.queue("payroll")
    shop.put(origin="payroll")
    assert "which is not a source of orders-dlq (sources: orders)" in shop.refused("retry", "id-0")
    assert shop.depths() == (0, 2, 0)
    assert shop.run("retry", "--all", "--to", "orders").exit_code == 0


# wrong usage: one line, exit code 2, nothing changed

ID_AND_MORE = "ids cannot be combined with --where, --group, --since, --until or --all"
WRONG = {
    "retry": "no dead letters selected, and no terminal to ask at: give ids, --where, --group or --all",
    "remove": "no dead letters selected: give ids, --where, --group or --all",
    "retry id-0 --all": f"{ID_AND_MORE}: ",
    "remove id-0 --where attempts=1": f"{ID_AND_MORE}: ",
    "show id-0 --group x": ID_AND_MORE,
    "show --where body.[=1": "invalid condition 'body.[=1' at column 9: unclosed bracket",
    "show --json --event": "--json and --event cannot be combined: give one of them",
    "show id-0 --json --event --pytest": "--json and --event and --pytest cannot be combined: give one",
    "show --endpoint-url localhost:4576": "'localhost:4576' is not an endpoint URL; an example is http://",
    "show --endpoint-url http://[::1": "'http://[::1' is not an endpoint URL",
    "retry --all --edit": "--edit needs ids",
    "retry --all --to nope": "queue 'nope' does not exist; existing queues: orders-dlq, orders",
    "retry --all --to orders-dlq": "orders-dlq is the dead-letter queue itself",
    "retry --all --via local": "the template is needed to find the handlers: there is no ",
    "retry --all --rate 0": "--rate must be a number of messages above 0, such as 20/s, 100/m or 500/h",
    "retry --all --max-return 5": "--max-return must be a percentage from 0% to 100%, such as 5%: '5'",
    "retry --all --canary 0": "--canary must be a number, 1 or more",
    "retry --all --canary 2 --within 0s": "--within must be more than 0 s and less than 12 h",
    "retry --all --within 5m": "--within says how long to watch canaries: give --canary N",
    "retry id-0 --canary 2": "--canary retries some of a selection first: give --group, --where or",
    "retry --all --via local --rate 2/s": "--via local runs one dead letter at a time: leave out",
    "retry --all --via aws --canary 2": "--via aws lets SQS move the messages: leave out --canary",
    "retry --group x --via aws": "--via aws moves the whole dead-letter queue: give --all, without",
    "show --since yesterday": "--since must be a time such as 2026-11-21T08:00Z, or a duration such as 2h",
    "show --since 1h --until 2h": "--since 1h is not before --until 2h: no time is between them",
    "show --sample 5": "--sample needs --group-by: --max limits a list",
    "show --group-by error --event": "--group-by counts dead letters: it cannot be combined with --event",
    "show id-0 --group-by error": "--group-by counts dead letters: it cannot be combined with ids",
    "show --group-by error --pytest": "--group-by counts dead letters: it cannot be combined with --py",
    "--sample 5 show": "options go after the command: tarry failed show [OPTIONS]",
    "show --pytest": "--pytest needs ids: name the dead letters that become tests",
}


def test_wrong_usage_is_one_line_with_the_remedy_and_changes_nothing(shop: MotoShop) -> None:  # SPEC M6
    shop.put(1)
    for arguments, line in WRONG.items():
        error = shop.refused(*arguments.split())
        assert error.removeprefix(AT).startswith(f"tarry: {line}"), error
        assert error.count("\ntarry: ") <= 1
    assert shop.depths() == (0, 1, 0)


def test_what_changes_something_needs_a_place_and_what_deletes_a_terminal_or_force(shop: MotoShop) -> None:  # SPEC M3
    shop.put(2)
    for selected in ("id-0", "--all", "--where=attempts = 1"):
        error = shop.refused("remove", selected)
        assert "remove asks before it deletes, and there is no terminal: add --force" in error
    for command in ("retry --all", "retry", "remove id-0", "remove id-0 --force"):
        result = CliRunner().invoke(app, ["failed", *command.split(), "--queue", "orders-dlq"])
        assert (result.exit_code, result.stdout) == (2, "")
        needs = "say where to do this: --local, --aws, --stack NAME or --endpoint-url URL"
        assert command == "retry" or needs in result.stderr
    assert shop.depths() == (0, 2, 0)
    assert CliRunner().invoke(app, ["failed", "show", "--queue", "orders-dlq"]).exit_code == 0
