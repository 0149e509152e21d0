"""`tarry failed` on many dead letters on moto: the summary, groups, selections, previews and wrong usage."""

import pytest

from tests.integration.failed.test_command import MotoShop, objects, put_in_worse, shop

__all__ = ["shop"]

TIMEOUT = {"type": "app.Timeout", "message": "no answer", "fingerprint": "timeout00000"}


def put_both(shop: MotoShop) -> None:
    """Put four declined cards, six timeouts, and a message that SQS moved."""
    shop.put(4)
    shop.put(6, first=4, failed_at="2026-11-21T08:31:40Z", **TIMEOUT)
    shop.put(recorded=False)


def test_without_a_command_all_queues_are_summarized(shop: MotoShop) -> None:  # SPEC M2
    """The summary says how many died of what, since when, how often, and which commands to type next."""
    shop.template()
    shop.sqs.create_queue(QueueName="spare-dlq")
    put_both(shop)
    result = shop.run(queue=None, columns="80")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "orders-dlq: about 11 dead letters"
    assert lines[1].startswith("2026-11-21 08:21 to ")
    assert lines[2] == "  6  timeout00000  app.Timeout: no answer"
    assert lines[3] == "     2026-11-21 08:31 UTC; for example id-9"
    assert lines[4] == "  4  9f2c61d0a4be  app.CardDeclined: no"
    assert lines[6] == "  1  (none)  no failure record (not dead-lettered by tarry)"
    assert max(map(len, lines)) <= 80
    assert result.stderr.splitlines()[-2:] == [
        "  tarry failed show id-9 --queue orders-dlq --aws",
        "  tarry failed retry --group timeout00000 --canary 10 --queue orders-dlq --aws",
    ]
    assert shop.depths() == (0, 11, 0)
    [summary] = objects(shop.run("--json", "--queue", "orders-dlq", queue=None))
    assert (summary["queue"], summary["about"], [group["count"] for group in summary["groups"]]) == (
        "orders-dlq",
        11,
        [6, 4, 1],
    )


@pytest.mark.parametrize("command", [(), ("show", "--group-by", "fingerprint")])
def test_one_error_in_several_queues_is_one_cause_with_a_total(shop: MotoShop, command: tuple[str, ...]) -> None:
    """Its fingerprints differ, since two handlers have it. SPEC M2"""
    put_in_worse(shop, "job-1", "job-2", **(TIMEOUT | {"fingerprint": "of-jobs"}))
    put_both(shop)
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


def test_a_queue_without_dead_letters_is_summarized_without_an_inspection(shop: MotoShop) -> None:  # SPEC M2
    result = shop.run()
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "no dead letters: orders-dlq\n",
        "AWS 123456789012 us-east-1\n",
    )


def test_a_summary_is_of_a_sample(shop: MotoShop) -> None:  # SPEC M2
    shop.put(40)
    result = shop.run("--sample", "10")
    assert "orders-dlq: about 40 dead letters\n" in result.stdout
    assert "Of a sample of 10:" in result.stdout
    assert "scanned 10 of about 40 in 2 requests" in result.stderr


def test_groups_are_shown_and_acted_on(shop: MotoShop) -> None:  # SPEC M2, M3
    put_both(shop)
    result = shop.run("show", "--group-by", "fingerprint", "--where", "reason != null", columns="80")
    assert result.stdout.splitlines()[0] == "orders-dlq: 10 dead letters by fingerprint"
    groups = objects(shop.run("show", "--group-by", "type", "--json"))
    assert [(each["value"], each["count"], each["where"]) for each in groups] == [
        ("app.Timeout", 6, ["type = app.Timeout"]),
        ("app.CardDeclined", 4, ["type = app.CardDeclined"]),
        (None, 1, ["type = null"]),
    ]
    assert len(objects(shop.run("show", "--group", "timeout00000", "--json"))) == 6
    result = shop.run("retry", "--group", "timeout00000")
    assert result.stdout == "retried 6, failed 0, skipped 0\n"
    result = shop.run("remove", "--group", "9f2c61d0a4be", "--until", "2026-11-21T09:00Z", "--force")
    assert result.stdout == "deleted 4, failed 0\n"
    assert shop.depths() == (6, 1, 0)


@pytest.mark.parametrize(
    "command",
    [("show",), ("show", "--group-by", "error"), ("retry",), ("retry", "--dry-run"), ("remove", "--force")],
)
def test_a_group_that_does_not_exist_is_an_error_and_a_filter_that_matches_none_is_not(
    shop: MotoShop, command: tuple[str, ...]
) -> None:  # SPEC M6
    shop.put(3)
    result = shop.run(*command, "--group", "nope")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-2:] == [
        "tarry: no dead letter in orders-dlq matches fingerprint = nope",
        "The groups there are: tarry failed show --group-by fingerprint --queue orders-dlq --aws",
    ]
    result = shop.run(*command, "--where", "attempts > 90", "--since", "2026-01-01")
    assert result.exit_code == 0
    assert "matches dead-lettered since 2026-01-01T00:00:00Z and attempts > 90" in result.stderr
    assert shop.depths() == (0, 3, 0)


def test_a_dry_run_prints_what_would_be_done_to_each_and_changes_nothing(shop: MotoShop) -> None:  # SPEC M6
    put_both(shop)
    shop.put(1, first=20, reason="undecodable")
    result = shop.run("retry", "--all", "--dry-run", "--canary", "5")
    lines = sorted(result.stdout.splitlines()[:-1])
    assert result.stdout.splitlines()[-1] == "would retry 10 dead letters, fail 1, skip 1; nothing was changed"
    assert "id-3  would be sent to orders" in lines
    assert "id-20  would be skipped: its body cannot be decoded: edit or remove it" in lines
    assert sum("would fail: the origin of dead letter" in line for line in lines) == 1
    assert "5 of these first, and the others only if none of the 5 comes back" in result.stderr
    assert result.exit_code == 1
    assert shop.depths() == (0, 12, 0)
    [planned] = objects(shop.run("retry", "id-3", "--dry-run", "--json"))
    assert planned == {"id": "id-3", "would": "retried", "queue": "orders"}
    # A retry then does exactly that.
    done = objects(shop.run("retry", "--all", "--json"))
    assert sum(each["outcome"] == "retried" for each in done) == 10
