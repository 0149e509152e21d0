"""Leases that may not be longer than a limit, however many dead letters are in flight, and leases that are lost."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import ConfigurationError, failed
from tarry.failed import ArchiveFile, Canary, Limits, Routes
from tarry.failed.requests import PatientRequests
from tarry.failed.selection import lost_leases
from tarry.sqs.client import Requests
from tarry.testing import Sandbox
from tests.integration.failed.sandboxed import fill, held, outcomes, put, retried, there
from tests.unit.failed.dead_letters import envelope_of

EXTEND = "ChangeMessageVisibilityBatch"


def around_each_request(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[str, dict[str, Any]], object] = lambda *_: None,
    after: Callable[[str], object] = lambda _: None,
) -> None:
    """Call these before each request to SQS and after SQS has carried it out; what one raises is the answer."""
    real = PatientRequests._call

    def call(self: PatientRequests, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        before(operation, parameters)
        try:
            return real(self, operation, parameters)
        finally:
            after(operation)

    monkeypatch.setattr(PatientRequests, "_call", call)


def answers_late(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, operation: str, seconds: float) -> None:
    """Let the answers of SQS to an operation, which it has carried out, take so long."""
    around_each_request(monkeypatch, after=lambda asked: sandbox.sleep(seconds) if asked == operation else None)


def timeouts_asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return the visibility timeouts of all further requests, counted as they are made."""
    asked = Counter[int]()

    def look(_: str, parameters: dict[str, Any]) -> None:
        entries = parameters.get("Entries", [parameters])
        asked.update(each["VisibilityTimeout"] for each in entries if "VisibilityTimeout" in each)

    around_each_request(monkeypatch, look)
    return asked


def test_no_request_asks_for_more_than_the_limit_however_many_dead_letters_are_held(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, timeouts get longer instead, and fewer requests extend them. Throttled extensions are repeated."""
    fill(sandbox, 510)
    asked = timeouts_asked(monkeypatch)
    with failed.opened("orders-dlq", keepalive=2, longest=8) as inspection:
        [group] = failed.groups(inspection)
        sandbox.faults.add("throttle", operation=EXTEND, times=10)
        sandbox.sleep(17)
        assert (group.count, len(inspection.leases), held(sandbox), inspection.leases.lost) == (510, 510, 510, 0)
        assert lost_leases(inspection) == ""
    assert (held(sandbox), max(asked)) == (0, 8)
    assert 510 * 2 <= asked[8] <= 510 * 8  # received, and extended after a third of each timeout
    asked.clear()
    with failed.opened("orders-dlq", keepalive=2) as inspection:
        failed.groups(inspection)
    assert max(asked) == 11  # one second for each 50


def test_a_limit_below_three_seconds_and_parts_of_a_second_is_not_exceeded(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sandbox, 12)
    asked = timeouts_asked(monkeypatch)
    for longest in (1, 1.9, 2.5):
        with failed.opened("orders-dlq", longest=longest) as inspection:
            assert sum(group.count for group in failed.groups(inspection)) == 12
            sandbox.sleep(10)
            assert held(sandbox) == 12
        assert max(asked) == int(longest)
    for wrong in (0.9, 43_201, float("nan"), True):
        with pytest.raises(ConfigurationError, match="longest must be from 1 to 43200 seconds"):
            failed.opened("orders-dlq", longest=wrong).__enter__()


def test_a_scan_recognises_dead_letters_whose_leases_are_lost_and_ends(sandbox: Sandbox) -> None:
    fill(sandbox, 300)
    sandbox.faults.add("throttle", operation=EXTEND, times=None)
    with failed.opened("orders-dlq", longest=6) as inspection:
        seen: list[str] = []

        def slowly(dead_letters: list[failed.DeadLetterMessage]) -> list[str]:
            sandbox.sleep(1)  # of 300, only 60 can be held for 6 seconds
            return [each.id for each in dead_letters]

        for found in inspection.in_threads(slowly, 1):
            seen += found
        assert sorted(seen) == there(sandbox)
        assert inspection.leases.lost > 200
        assert lost_leases(inspection).startswith("Visibility timeouts ended before they could be extended (")
        sandbox.faults.clear()
    assert held(sandbox) == 0


def test_a_scan_that_meets_the_same_dead_letters_again_and_again_ends_and_says_so(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each were visible again at once, the first ones first."""
    fill(sandbox, 40)
    with failed.opened("orders-dlq", longest=6) as inspection:
        receive, first = inspection._receive, list[Any]()

        def first_again(most: int, wait: int) -> Any:
            if len(first) < 20:
                first.extend(receive(most, wait))
                return first[-10:]
            return first[:10]

        monkeypatch.setattr(inspection, "_receive", first_again)
        assert sum(len(polled) for polled in inspection.polls()) == 20
        assert inspection.is_outrun
        assert lost_leases(inspection) == (
            "They became visible again faster than all could be received, so some may be missing. "
            "Use a longer --keepalive."
        )


def test_a_retry_of_a_group_sends_each_of_it_once_while_other_leases_are_lost(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters that wait to be sent are extended before the others."""
    fill(sandbox, 120, groups=3)
    refused = Counter[str]()

    def others(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "change_message_visibility_batch" and len(parameters["Entries"]) > 1:
            refused[operation] += 1
            raise ClientError({"Error": {"Code": "RequestThrottled", "Message": "slow down"}}, operation)

    around_each_request(monkeypatch, others)
    with failed.opened("orders-dlq", longest=3) as inspection:
        results = retried(inspection, group="group1", limits=Limits(rate=2))
        assert inspection.leases.lost
    assert (bool(refused), outcomes(results)) == (True, {"retried": 40})
    assert len(there(sandbox, "orders")) == len(set(there(sandbox, "orders"))) == 40
    assert len(there(sandbox)) == 80


@pytest.mark.parametrize("is_received_again", [True, False])
def test_a_dead_letter_whose_lease_ends_between_send_and_delete_is_deleted_again_or_reported(
    sandbox: Sandbox, is_received_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS answers a delete with an old receipt handle as if it had deleted the message."""
    fill(sandbox, 1)
    opened: list[failed.Inspection] = []

    def late(operation: str, _: dict[str, Any]) -> None:
        if operation == "send_message_batch":
            opened[0].leases.close()
            sandbox.sleep(4)
            if is_received_again:
                assert opened[0].poll() == []  # it is known
            else:
                with failed.opened("orders-dlq", longest=3) as other:
                    assert len(other.poll()) == 1

    around_each_request(monkeypatch, late)
    with failed.opened("orders-dlq", longest=3) as inspection:
        opened.append(inspection)
        [result] = retried(inspection)
    if is_received_again:
        assert (result.outcome, there(sandbox)) == ("retried", [])
    else:
        why = "sent to orders, but it may still be in orders-dlq (its visibility timeout had"
        assert str(result.error).startswith(why)
    assert there(sandbox, "orders") == ["id-0"]


def test_after_canaries_the_others_are_retried_although_their_leases_were_lost(sandbox: Sandbox) -> None:
    fill(sandbox, 60)
    sandbox.faults.add("throttle", operation=EXTEND, times=None)
    canary = Canary(2, 60, lambda left, total: sandbox.faults.clear() if left < 10 else None)
    with failed.opened("orders-dlq", longest=6) as inspection:
        assert outcomes(retried(inspection, canary=canary)) == {"retried": 60}
        assert inspection.leases.lost
    assert (there(sandbox), len(there(sandbox, "orders"))) == ([], 60)


@pytest.mark.parametrize("answered_after", [2.5, 20], ids=["during an extension", "after the lease"])
def test_a_removed_dead_letter_whose_delete_is_answered_late_can_be_restored(
    sandbox: Sandbox, answered_after: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SQS refuses to extend a dead letter that it has deleted, which does not mean that the delete was in vain."""
    fill(sandbox, 20)
    ids = there(sandbox)
    archive = ArchiveFile(tmp_path / "archive.jsonl")
    add = archive.add

    def slowly(dead_letters: Any) -> None:
        add(dead_letters)
        sandbox.sleep(9)

    monkeypatch.setattr(archive, "add", slowly)
    with failed.opened("orders-dlq") as inspection:
        failed.check_may_delete(inspection)
        answers_late(monkeypatch, sandbox, "delete_message_batch", answered_after)
        results = failed.remove_dead_letters(inspection, [*inspection.poll(), *inspection.poll()], archive)
        assert (outcomes(results), inspection.leases.lost) == ({"deleted": 20}, 0)
    archive.close()
    assert there(sandbox) == []
    assert outcomes(failed.restore(archive.path, failed.find("orders-dlq"))) == {"restored": 20}
    assert there(sandbox) == ids


def test_a_retry_whose_deletes_are_answered_late_is_reported_as_done(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sandbox, 10)
    answers_late(monkeypatch, sandbox, "delete_message_batch", 2.5)
    answers_late(monkeypatch, sandbox, "send_message_batch", 1)
    with failed.opened("orders-dlq", longest=3) as inspection:
        assert outcomes(retried(inspection)) == {"retried": 10}
    assert (there(sandbox), len(there(sandbox, "orders"))) == ([], 10)


def test_leases_are_held_while_extensions_are_throttled_for_less_than_two_thirds_of_them(sandbox: Sandbox) -> None:
    fill(sandbox, 100)
    with failed.opened("orders-dlq") as inspection:
        assert sum(map(len, inspection.polls())) == 100
        sandbox.sleep(5)
        sandbox.faults.add("throttle", operation=EXTEND, times=None)
        sandbox.sleep(8)
        sandbox.faults.clear()
        sandbox.sleep(10)
        assert (held(sandbox), len(inspection.leases), inspection.leases.lost) == (100, 100, 0)


def test_each_lease_counts_from_its_own_request(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 to be extended, in requests of 2 s, the last are asked for 4 s after the first."""
    fill(sandbox, 300)
    with failed.opened("orders-dlq", longest=30) as inspection:
        assert sum(map(len, inspection.polls(100))) == 300
        with monkeypatch.context() as patch:
            answers_late(patch, sandbox, "change_message_visibility_batch", 2)
            sandbox.sleep(15)
        untils = sorted({round(each.until) for each in inspection.leases._held.values()})
        assert untils[-1] - untils[0] >= 4
        assert held(sandbox) == 300


def test_a_message_that_comes_at_the_end_of_a_wait_as_long_as_its_timeout_is_held(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sandbox, 0)
    call = Requests.call

    def late(self: Requests, operation: str, **parameters: Any) -> Any:
        if operation == "receive_message":
            sandbox.sleep(1)
            put(sandbox, "{}", envelope_of("{}", "id-0"))
        return call(self, operation, **parameters)

    with failed.opened("orders-dlq", keepalive=1, longest=1) as inspection:
        with monkeypatch.context() as patch:
            patch.setattr(Requests, "call", late)
            [dead_letter] = inspection.poll()
        assert inspection.delivery(dead_letter) is not None


def test_a_lease_that_could_not_be_extended_in_time_has_no_receipt_handle(sandbox: Sandbox) -> None:
    fill(sandbox, 1)
    with failed.opened("orders-dlq", keepalive=10, longest=30) as inspection:
        [dead_letter] = inspection.poll()
        inspection.leases.close()
        sandbox.sleep(22)
        sandbox.faults.add("throttle", operation=EXTEND, times=None)
        assert inspection.delivery(dead_letter) is None
        sandbox.faults.clear()


def test_a_throttled_send_is_not_repeated_after_the_lease_has_ended(sandbox: Sandbox) -> None:
    """Another operator may have sent the dead letter by then."""
    fill(sandbox, 1)
    for operation in (EXTEND, "SendMessageBatch"):
        sandbox.faults.add("throttle", operation=operation, times=None)
    with failed.opened("orders-dlq", longest=6) as inspection:
        [result] = failed.retry_dead_letters(inspection, inspection.poll(), Routes(inspection.queue))
        sandbox.faults.clear()
    assert (result.outcome, there(sandbox), there(sandbox, "orders")) == ("failed", ["id-0"], [])
    assert "not sent to orders" in str(result.error)
    assert "its visibility timeout has ended" in str(result.error)


def test_a_watch_of_canaries_ends_in_time_and_reports_progress_although_leases_are_lost(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sandbox, 300)
    answers_late(monkeypatch, sandbox, "receive_message", 0.5)
    looks: list[float] = []
    canary = Canary(2, 30, lambda left, total: looks.append(sandbox.now))
    with failed.opened("orders-dlq", longest=3) as inspection:
        sandbox.faults.add("throttle", operation=EXTEND, times=None)
        with pytest.raises(ConfigurationError, match="whether canaries came back to orders-dlq could not be seen"):
            retried(inspection, canary=canary)
        sandbox.faults.clear()
    assert looks[-1] - looks[0] < 30 + 3 + 5
    assert max(later - sooner for sooner, later in pairwise(looks)) < 8
