"""The story of a dead letter from its failure record alone."""

from datetime import UTC, datetime

from tarry.failed.text import facts_of
from tarry.tools.console.message import story_of_record
from tests.scanned import moved, recorded
from tests.unit.failed.dead_letters import NOW


def test_the_record_tells_when_the_message_was_sent_failed_and_dead_lettered() -> None:
    story = story_of_record(recorded("id-1"), NOW)
    assert story is not None
    found = [(str(each.state), datetime.fromtimestamp(each.at, UTC).strftime("%H:%M:%S"), each.attempt, each.delay)
            for each in story.events]  # fmt: skip
    assert found == [
        ("READY", "08:00:00", None, None),
        ("WAITING_RETRY", "08:03:00", 1, 30.0),
        ("WAITING_RETRY", "08:09:00", 2, 60.0),
        ("DEAD_LETTERED", "08:21:40", 5, None),
    ]
    assert story.queues == ["orders", "orders-dlq"]
    assert story.summary.startswith("Dead-lettered after 5 attempts in 21 min 40 s. First failure 08:03:00 UTC: Gate")
    assert story.notes == ("2 attempts have no entry in the record: retries in place write none.",)
    assert not story.is_whole


def test_the_attempts_of_a_message_that_was_sent_back_are_counted_from_then_on_in_its_story() -> None:
    """The failure record counts all of them, which its facts say."""
    entries = [(1, "08:00:30"), (2, "08:01:00"), (1, "08:10:00"), (2, "08:11:00"), (3, "08:21:40.112")]
    history = [{"attempt": number, "at": f"2026-11-21T{at}Z", "error": "app.E: no"} for number, at in entries]
    dead_letter = recorded("id-1", history=history, attempts=5)
    story = story_of_record(dead_letter, NOW)
    assert story is not None
    assert story.summary.startswith("Dead-lettered after 3 attempts")
    assert story.notes == ()  # each attempt has an entry
    facts = dict(facts_of(dead_letter))["dead-lettered"]
    assert facts.endswith("exhausted, after 5 attempts in all, 3 of them since it was last sent back")


def test_without_a_record_or_its_times_there_is_no_story() -> None:
    assert story_of_record(moved("m"), NOW) is None
    assert story_of_record(recorded("id-1", failed_at=None, history=[]), NOW) is None


def test_entries_with_wrong_values_are_left_out() -> None:
    entries = [{"at": "soon", "attempt": 1}, {"attempt": 2}, {"at": "2026-11-21T08:09:00Z", "attempt": True}]
    story = story_of_record(recorded("id-1", history=entries, sent="never"), NOW)
    assert story is not None
    assert [each.attempt for each in story.events][-2:] == [None, 5]
