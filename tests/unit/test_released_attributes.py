"""`Tarry` attributes of released and of later versions: two versions of a consumer share one queue."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarry import DeadLetter, Message, SendAgain, consumer
from tarry.failed.dead_letters import BEGINS_ANEW, fresh_envelope
from tarry.record.attribute import UnreadableRecord, body_sum, read_envelope
from tests.records import Context, event, record
from tests.unit.failed.dead_letters import dead_letter
from tests.wire import Queue, Wire, arn

RELEASED = sorted((Path(__file__).parents[1] / "data" / "tarry-attributes").glob("*.json"), key=lambda path: path.stem)
NOW = 1_800_000_200.0
BODY = '{"id": 1}'


def attribute(text: str) -> dict[str, Any]:
    return {"dataType": "String", "stringValue": text}


def released(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the body and the record of a file."""
    message = json.loads(path.read_text())
    return message["body"], json.loads(message["attribute"])


def test_there_is_a_released_attribute_of_each_kind() -> None:  # DESIGN 3
    assert [path.stem for path in RELEASED] == [
        "copy-deferred", "copy-deferred-after-failure", "copy-with-due", "copy-with-steps", "dead-letter-exhausted",
        "dead-letter-fatal", "dead-letter-rejected", "dead-letter-undecodable", "dead-letter-with-extra",
        "dead-letter-with-history", "edited", "parked-send",
    ]  # fmt: skip


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_a_released_attribute_is_read_completely(path: Path) -> None:  # DESIGN 3
    body, written = released(path)
    envelope = read_envelope(attribute(json.dumps(written)), body, NOW)
    for name in ("id", "origin", "sent", "edited", "due"):
        assert getattr(envelope, name) == written.get(name)
    assert (envelope.carried, envelope.hops) == (written.get("carried", 0), written.get("hops", 0))
    assert dict(envelope.steps) == written.get("steps", {})
    if "failure" not in written:
        assert envelope.failure is None
        return
    assert envelope.failure is not None
    assert {name: getattr(envelope.failure, name) for name in written["failure"]} == written["failure"]
    assert [dict(entry) for entry in envelope.failure.history] == written["history"]


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_the_command_reads_a_released_attribute(path: Path) -> None:  # DESIGN 3, M2
    body, written = released(path)
    dead = dead_letter(body, written)
    assert (dead.id, dead.edited) == (written["id"], written.get("edited"))
    assert (dead.failure is None) == ("failure" not in written)
    fresh = fresh_envelope(dead)
    assert {name: fresh[name] for name in written if name not in BEGINS_ANEW} == {
        name: value for name, value in written.items() if name not in BEGINS_ANEW
    }


# later versions


LATER = {
    "future": {"of": ["a", "later", "version"]},
    "notes": {"lane": "slow"},
    "extra": {"tenant": "acme"},
    "failure": {"reason": "error", "attempts": 1, "type": "E", "said": "the customer is gone", "future": 7},
    "history": [{"attempt": 1, "at": "2027-01-15T08:00:00.000Z", "error": "E", "delay": 30, "future": True}],
}


def later(**more: Any) -> dict[str, Any]:
    """Return a record of a later version, with keys that this version does not know."""
    return {"v": 1, "sum": body_sum(BODY), "id": "m1", "origin": arn("orders"), "carried": 1, **LATER, **more}


def test_unknown_keys_of_a_later_version_are_ignored() -> None:  # SPEC E3
    envelope = read_envelope(attribute(json.dumps(later())), BODY, NOW)
    assert (envelope.id, envelope.carried, dict(envelope.notes)) == ("m1", 1, {"lane": "slow"})
    assert envelope.failure is not None
    assert (envelope.failure.said, envelope.failure.extra) == ("the customer is gone", {"tenant": "acme"})
    assert [dict(entry) for entry in envelope.failure.history] == [
        {"attempt": 1, "at": "2027-01-15T08:00:00.000Z", "error": "E", "delay": 30}
    ]


@pytest.mark.parametrize(
    "notes", [5, ["a"], "x", {"lane": 5}, {"lane": None}, {"lane": ["x"]}, {"lane": "x" * 257}], ids=str
)
def test_notes_that_are_not_texts_make_the_record_unreadable(notes: Any) -> None:  # DESIGN 3
    with pytest.raises(UnreadableRecord, match=r"notes"):
        read_envelope(attribute(json.dumps(later(notes=notes))), BODY, NOW)


@pytest.mark.parametrize("extra", [5, ["a"], "x", None])
def test_an_extra_that_is_not_an_object_is_none(extra: Any) -> None:  # SPEC F6
    failure = read_envelope(attribute(json.dumps(later(extra=extra))), BODY, NOW).failure
    assert failure is not None
    assert failure.extra is None


def sent_by(handler: Any, **more: Any) -> dict[str, Any]:
    """Return the record of the copy that this version sends of a message from a later version."""
    with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}) as wire:
        handler(event(record(BODY, "copy", attributes={"Tarry": attribute(json.dumps(later(**more)))})), Context())
    [written] = wire.envelopes()
    return written


def test_a_deferred_copy_keeps_everything_that_a_later_version_wrote() -> None:  # SPEC E3, J5
    written = sent_by(consumer(lambda message: message.defer(60)))
    for name in ("future", "notes", "extra"):
        assert written[name] == LATER[name]
    assert written["failure"] == LATER["failure"]


def fails(message: Message) -> None:
    raise ValueError("out of order")


def test_a_copy_sent_by_send_again_keeps_unknown_keys_and_notes() -> None:  # SPEC E3, E6
    written = sent_by(consumer(on_failure=[SendAgain("slow", delay=60)])(fails))
    assert (written["future"], written["notes"], written["steps"]) == (LATER["future"], {"lane": "slow"}, {"slow": 1})
    assert (written["failure"]["type"], "extra" in written) == ("ValueError", False)
    assert [entry.get("delay") for entry in written["history"]] == [30, 60]


def test_a_dead_letter_keeps_no_keys_of_earlier_copies() -> None:  # SPEC F2
    written = sent_by(consumer(on_failure=[DeadLetter()])(fails))
    assert {"future", "notes", "extra", "carried", "steps"}.isdisjoint(written)
    assert written["failure"]["attempts"] == 2


def test_a_retried_dead_letter_keeps_the_keys_of_a_later_version() -> None:  # SPEC F2
    fresh = fresh_envelope(dead_letter(BODY, later()))
    assert (fresh["future"], fresh["failure"], fresh["extra"]) == (LATER["future"], LATER["failure"], LATER["extra"])
    assert {"carried", "notes"}.isdisjoint(fresh)
