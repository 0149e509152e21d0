"""`Tarry` attributes of released and of later versions: two versions of a consumer share one queue."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarry import DeadLetter, Message, SendAgain, consumer
from tarry.failed.dead_letters import BEGINS_ANEW, fresh_envelope
from tarry.record.attribute import read_envelope
from tests.records import Context, event, record
from tests.settled import orders
from tests.unit.failed.dead_letters import dead_letter
from tests.unit.test_envelope import BODY, NOW, a_record, attribute
from tests.wire import arn

RELEASED = sorted((Path(__file__).parents[1] / "data" / "tarry-attributes").glob("*.json"), key=lambda path: path.stem)


def test_there_is_a_released_attribute_of_each_kind() -> None:  # DESIGN 3
    assert [path.stem for path in RELEASED] == [
        "copy-deferred", "copy-deferred-after-failure", "copy-with-due", "copy-with-steps", "dead-letter-exhausted",
        "dead-letter-fatal", "dead-letter-rejected", "dead-letter-undecodable", "dead-letter-with-extra",
        "dead-letter-with-history", "edited", "parked-send",
    ]  # fmt: skip


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_a_released_attribute_is_read_completely_by_consumers_and_commands(path: Path) -> None:  # DESIGN 3, SPEC M2
    message = json.loads(path.read_text())
    body, written = message["body"], json.loads(message["attribute"])
    envelope = read_envelope(attribute(written), body, NOW)
    for name in ("id", "origin", "sent", "edited", "due"):
        assert getattr(envelope, name) == written.get(name)
    assert (envelope.carried, envelope.hops) == (written.get("carried", 0), written.get("hops", 0))
    assert dict(envelope.steps) == written.get("steps", {})
    dead = dead_letter(body, written)
    assert (dead.id, dead.edited) == (written["id"], written.get("edited"))
    fresh = fresh_envelope(dead)
    assert {name: fresh[name] for name in written if name not in BEGINS_ANEW} == {
        name: value for name, value in written.items() if name not in BEGINS_ANEW
    }
    if "failure" not in written:
        assert (envelope.failure, dead.failure) == (None, None)
        return
    assert envelope.failure is not None
    assert dead.failure is not None
    assert {name: getattr(envelope.failure, name) for name in written["failure"]} == written["failure"]
    assert [dict(entry) for entry in envelope.failure.history] == written["history"]


LATER = {
    "future": {"of": ["a", "later", "version"]},
    "notes": {"lane": "slow"},
    "extra": {"tenant": "acme"},
    "failure": {"reason": "error", "attempts": 1, "type": "E", "said": "the customer is gone", "future": 7},
    "history": [{"attempt": 1, "at": "2027-01-15T08:00:00.000Z", "error": "E", "delay": 30, "future": True}],
}
OF_LATER = a_record(origin=arn("orders"), carried=1, **LATER)


def test_unknown_keys_of_a_later_version_are_ignored_and_kept_when_a_dead_letter_is_retried() -> None:  # SPEC E3, F2
    envelope = read_envelope(attribute(OF_LATER), BODY, NOW)
    assert (envelope.id, envelope.carried, dict(envelope.notes)) == ("m1", 1, {"lane": "slow"})
    assert envelope.failure is not None
    assert (envelope.failure.said, envelope.failure.extra) == ("the customer is gone", {"tenant": "acme"})
    assert [dict(entry) for entry in envelope.failure.history] == [
        {"attempt": 1, "at": "2027-01-15T08:00:00.000Z", "error": "E", "delay": 30}
    ]
    fresh = fresh_envelope(dead_letter(BODY, OF_LATER))
    assert {name: fresh[name] for name in ("future", "failure", "extra")} == {
        name: LATER[name] for name in ("future", "failure", "extra")
    }
    assert {"carried", "notes"}.isdisjoint(fresh)


def sent_by(handler: Any) -> dict[str, Any]:
    """Return the record of the copy that this version sends of a message from a later version."""
    with orders() as wire:
        handler(event(record(BODY, "copy", attributes={"Tarry": attribute(OF_LATER)})), Context())
    [written] = wire.envelopes()
    return written


def fails(message: Message) -> None:
    raise ValueError("out of order")


def test_copies_keep_what_a_later_version_wrote_and_a_dead_letter_does_not() -> None:  # SPEC E3, E6, F2, J5
    deferred = sent_by(consumer(lambda message: message.defer(60)))
    assert {name: deferred[name] for name in ("future", "notes", "extra", "failure")} == {
        name: value for name, value in LATER.items() if name != "history"
    }
    again = sent_by(consumer(on_failure=[SendAgain("slow", delay=60)])(fails))
    assert (again["future"], again["notes"], again["steps"]) == (LATER["future"], {"lane": "slow"}, {"slow": 1})
    assert (again["failure"]["type"], "extra" in again) == ("ValueError", False)
    assert [entry.get("delay") for entry in again["history"]] == [30, 60]
    dead = sent_by(consumer(on_failure=[DeadLetter()])(fails))
    assert {"future", "notes", "extra", "carried", "steps"}.isdisjoint(dead)
    assert dead["failure"]["attempts"] == 2
