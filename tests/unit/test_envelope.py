"""The `Tarry` record: reading it, refusing it, and trimming it to a size limit."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarry.message.failure_record import fit, smallest
from tarry.record.attribute import (
    Envelope,
    UnreadableRecord,
    body_sum,
    dump,
    is_dead_letter,
    is_ours,
    next_history,
    read_envelope,
    timestamp,
)

NOW = 1_800_000_000.0
BODY = '{"id": 1}'


def attribute(record: Any) -> dict[str, Any]:
    return {"stringValue": record if isinstance(record, str) else json.dumps(record), "dataType": "String"}


def a_record(**more: Any) -> dict[str, Any]:
    return {"v": 1, "sum": body_sum(BODY), "id": "m1", **more}


def read(**more: Any) -> Any:
    return read_envelope(attribute(a_record(**more)), BODY, NOW)


# reading


def test_a_field_that_a_record_lacks_is_0_empty_or_none() -> None:  # DESIGN 3
    envelope = read()
    assert envelope.id == "m1"
    assert (envelope.carried, envelope.hops, dict(envelope.steps)) == (0, 0, {})
    assert (envelope.origin, envelope.sent, envelope.due, envelope.failure) == (None, None, None, None)


def test_every_field_of_the_contract_is_read() -> None:  # DESIGN 3
    failure = {
        "reason": "exhausted", "attempts": 5, "type": "orders.CardDeclined", "message": "no", "traceback": "File ...",
        "fingerprint": "9f2c61d0a4be", "first_failed_at": "2026-01-01T00:00:00Z", "failed_at": "2026-01-01T00:01:00Z",
        "function": "f", "request_id": "r",
    }  # fmt: skip
    history = [{"attempt": 1, "at": "2026-01-01T00:00:00Z", "error": "E: x", "delay": 10}]
    more = {
        "origin": "arn:aws:sqs:us-east-1:1:q", "sent": "2026-01-01T00:00:00Z", "carried": 3, "due": NOW + 60, "hops": 2,
        "steps": {"slow-lane": 2}, "failure": failure, "history": history,
    }  # fmt: skip
    envelope = read(**more)
    assert {name: getattr(envelope.failure, name) for name in failure} == failure
    assert list(envelope.failure.history) == history
    for name in ("origin", "sent", "carried", "due", "hops", "steps"):
        assert getattr(envelope, name) == more[name]


@pytest.mark.parametrize(
    "fields",
    [
        {"carried": 0}, {"carried": 1_000}, {"hops": 1_000}, {"steps": {"a": 0, "b": 1_000}}, {"due": 0}, {"due": NOW},
        {"due": NOW + 365 * 86_400}, {"failure": None}, {"history": []}, {"unknown": {"of": "a later version"}},
    ],
    ids=str,
)  # fmt: skip
def test_values_within_their_ranges_are_accepted(fields: dict[str, Any]) -> None:  # DESIGN 3
    assert read(**fields).id == "m1"


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2}, {"v": None}, {"v": "1"}, {"v": True}, {"v": 1.0},
        {"sum": ""}, {"sum": None}, {"sum": 7}, {"id": None}, {"id": ""}, {"id": 5},
        {"carried": -1}, {"carried": 1_001}, {"carried": 0.5}, {"carried": "1"}, {"carried": False}, {"carried": None},
        {"hops": -1}, {"hops": 1_001}, {"steps": {"a": -1}}, {"steps": {"a": 1_001}}, {"steps": {"a": True}},
        {"steps": {"a": "2"}}, {"steps": 5}, {"steps": [1]},
        {"due": -1}, {"due": NOW + 367 * 86_400}, {"due": float("inf")}, {"due": float("nan")}, {"due": True},
        {"due": "1"}, {"origin": 7}, {"origin": ["orders"]}, {"sent": 7}, {"history": "x"}, {"failure": "x"},
        {"failure": []}, {"failure": ["x"]}, {"failure": {"type": 5}}, {"failure": {"message": {"x": 1}}},
        {"failure": {"attempts": -1}}, {"failure": {"attempts": 1.5}},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_range_makes_the_record_unreadable(fields: dict[str, Any]) -> None:  # DESIGN 3
    with pytest.raises(UnreadableRecord):
        read(**fields)


def test_a_record_of_another_body_is_refused() -> None:  # DESIGN 3
    with pytest.raises(UnreadableRecord, match="another body"):
        read_envelope(attribute(a_record()), BODY + " ", NOW)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (json.dumps(a_record()), True),
        (json.dumps(a_record(carried=-1)), True),
        (json.dumps({"v": 9, "sum": "x"}), True),
        (json.dumps({"id": "m1"}), False),
        ("[]", False),
        ("null", False),
        ("", False),
        ("not json", False),
        ("[" * 100_000, False),
    ],
    ids=lambda value: str(value)[:24],
)
def test_an_attribute_with_the_shape_of_a_record_is_ours_even_if_it_is_unreadable(
    text: str, ours: bool
) -> None:  # SPEC F3, K1
    assert is_ours(attribute(text)) is ours


@pytest.mark.parametrize(
    "odd", [{}, {"stringValue": None}, {"binaryValue": "AAEC", "dataType": "Binary"}, {"stringValue": 7}]
)
def test_an_attribute_without_text_is_not_ours(odd: dict[str, Any]) -> None:  # SPEC F3
    assert is_ours(odd) is False
    with pytest.raises(UnreadableRecord):
        read_envelope(odd, BODY, NOW)


@pytest.mark.parametrize("odd", ["text", 7, ["x"]])
def test_an_attribute_that_is_not_an_object_is_not_ours(odd: Any) -> None:  # DESIGN 3
    assert is_ours(odd) is False


def test_a_body_of_lone_surrogates_has_a_sum() -> None:  # DESIGN 3
    assert len(body_sum("\ud800")) == 16
    assert body_sum("\ud800") != body_sum("\ud801")


# writing


def test_times_are_iso_8601_in_utc() -> None:  # SPEC F2
    assert timestamp(1_767_225_600.5) == "2026-01-01T00:00:00.500Z"


@given(st.text(st.characters()))
def test_a_record_is_ascii_without_control_characters(text: str) -> None:  # DESIGN 3
    written = dump(a_record(failure={"message": text}))
    assert all(" " <= character <= "~" for character in written)
    assert json.loads(written)["failure"]["message"] == text


def test_a_value_that_json_cannot_represent_is_refused() -> None:  # DESIGN 3
    for odd in (float("nan"), float("inf"), object(), {1, 2}):
        with pytest.raises((TypeError, ValueError)):
            dump({"odd": odd})


@pytest.mark.parametrize("failures", [1, 2, 10, 11, 500])
def test_the_history_is_the_first_failure_and_the_last_nine(failures: int) -> None:  # SPEC E6
    history: list[Any] = []
    for attempt in range(1, failures + 1):
        history = next_history(tuple(history), attempt, "now", f"E: {attempt}")
    attempts = [entry["attempt"] for entry in history]
    assert attempts == ([1, *range(max(2, failures - 8), failures + 1)] if failures > 1 else [1])


def test_a_failure_without_an_error_is_in_the_history_too() -> None:  # SPEC E6, E1
    assert next_history((), 3, "now", None, delay=30) == [{"attempt": 3, "at": "now", "delay": 30}]


# fitting

FRAMES = "".join(
    f'  File "/var/task/app.py", line {line}, in function_{line}\n    step_{line}()\n' for line in range(200)
)
TRACEBACK = f"{FRAMES}app.Declined"
INNERMOST = "in function_199"


def long_record(message: str = "", traceback: str = TRACEBACK, **more: Any) -> dict[str, Any]:
    failure = {
        "reason": "exhausted", "attempts": 5, "type": "app.Declined", "message": message, "traceback": traceback,
        "fingerprint": "9f2c61d0a4be", "failed_at": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip
    history = [
        {"attempt": number, "at": "2026-01-01T00:00:00.000Z", "error": "E: " + "x" * 300} for number in range(10)
    ]
    return {**a_record(origin="arn:aws:sqs:us-east-1:123456789012:orders", failure=failure, history=history), **more}


any_text = st.text(st.characters(), max_size=3_000) | st.sampled_from(
    ["\x00" * 2_000, "\ud800" * 2_000, "😀" * 2_000, "\\" * 2_000, '"' * 2_000, "x" * 100_000, "é" * 5_000, ""]
)


@settings(max_examples=400)
@given(message=any_text, traceback=any_text | st.just(TRACEBACK), room=st.integers(-10, 8_000) | st.just(60_000))
@example(message="x" * 100_000, traceback=TRACEBACK, room=1_500)
@example(message="", traceback="", room=0)
def test_the_result_is_within_the_room_and_of_whole_characters_and_exists_whenever_the_smallest_record_fits(
    message: str, traceback: str, room: int
) -> None:  # SPEC F3
    record = long_record(message, traceback)
    before = json.dumps(record)
    text = fit(record, room)
    assert json.dumps(record) == before, "`fit` changed its argument"
    if text is None:
        assert len(dump(smallest(record))) > room
        return
    assert len(text) <= room
    assert all(" " <= character <= "~" for character in text)
    fitted = json.loads(text)
    assert (fitted["id"], fitted["sum"], fitted["failure"]["reason"]) == ("m1", record["sum"], "exhausted")
    envelope = read_envelope(attribute(text), BODY, NOW)
    assert envelope.failure is not None
    assert envelope.failure.attempts == 5
    kept = fitted["failure"].get("message", "")
    assert kept == message or message.startswith(kept.removesuffix("..."))
    kept = fitted["failure"].get("traceback", "")
    last = traceback.rindex("  File") if traceback == TRACEBACK else 0  # of one that is too long, its start is kept
    assert traceback.endswith(kept.removeprefix("...\n")) or traceback[last:].startswith(kept.removesuffix("..."))


@pytest.mark.parametrize("room", [1_000, 2_000, 3_000, 6_000, 12_000])
@pytest.mark.parametrize(
    "message", ["no", "x" * 1_000, "x" * 200_000, "😀" * 50_000, "\x00" * 50_000], ids=lambda m: f"{len(m)}"
)
def test_the_innermost_frames_are_kept_whatever_the_message(message: str, room: int) -> None:  # SPEC F3
    text = fit(long_record(message), room)
    assert text is not None
    failure = json.loads(text)["failure"]
    assert INNERMOST in failure["traceback"]
    assert failure["traceback"].endswith("app.Declined")
    assert failure["message"][:2] == message[:2]


def test_the_traceback_is_cut_before_the_message_and_from_the_top() -> None:  # SPEC F3
    record = long_record("m" * 500, history=[])
    whole = len(dump(record))
    failure = json.loads(fit(record, whole - 5_000) or "")["failure"]
    assert failure["message"] == "m" * 500
    assert INNERMOST in failure["traceback"]
    assert "in function_0\n" not in failure["traceback"]
    assert "File" in failure["traceback"].splitlines()[1], "the cut is within a frame"


def test_the_message_is_cut_at_its_end() -> None:  # SPEC F3
    failure = json.loads(fit(long_record("begin" + "m" * 9_000, "", history=[]), 1_000) or "")["failure"]
    assert failure["message"].startswith("begin")
    assert len(failure["message"]) > 300


def test_the_line_of_a_frame_is_kept_if_the_frame_itself_is_too_long() -> None:  # SPEC F3
    frame = '  File "/var/task/generated.py", line 1, in generated\n    '
    failure = json.loads(fit(long_record("", f"{FRAMES}{frame}{'é' * 9_000}\napp.Declined"), 2_000) or "")["failure"]
    assert failure["traceback"].startswith(f"{frame}éé")


@pytest.mark.parametrize("room", [1_500, 3_000])
def test_the_extra_of_a_hook_does_not_displace_the_failure(room: int) -> None:  # SPEC F3, F6
    fitted = json.loads(fit(long_record("no", extra={"order": "x" * 50_000}), room) or "")
    assert INNERMOST in fitted["failure"]["traceback"]
    assert (fitted["failure"]["type"], fitted["failure"]["message"]) == ("app.Declined", "no")
    assert "extra" not in fitted


def test_the_extra_of_a_hook_is_kept_if_it_fits() -> None:  # SPEC F3, F6
    fitted = json.loads(fit(long_record("x" * 50_000, extra={"order": 7}), 2_500) or "")
    assert fitted["extra"] == {"order": 7}


def test_a_record_that_fits_is_not_changed() -> None:  # SPEC F3
    record = long_record("é\x00")
    assert fit(record, len(dump(record))) == dump(record)


def test_as_much_is_kept_as_fits() -> None:  # SPEC F3
    for room in range(5_000, 6_000, 37):
        text = fit(long_record("x" * 100_000), room)
        assert text is not None
        assert room - len(text) < 150, "at most one frame more than needed is cut"


def test_the_counters_of_a_copy_are_kept_before_failure_and_history() -> None:  # SPEC E6
    """The next delivery of a copy needs its id, attempts, due time and step counters unchanged."""
    record = long_record("x" * 10_000, carried=3, due=NOW, hops=2, steps={"slow": 2})
    fitted = json.loads(fit(record, 600) or "")
    assert (fitted["carried"], fitted["due"], fitted["hops"], fitted["steps"]) == (3, NOW, 2, {"slow": 2})


@pytest.mark.parametrize(
    ("character", "room"), [("x", 10_000), ("é", 10_000), ("😀", 10_000), ("\\", 10_000), ("x", 1_000_000)]
)
def test_fitting_a_huge_text_encodes_little_of_it(
    character: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC F3, I2
    written: list[int] = []
    dumps = json.dumps

    def counting(*arguments: Any, **settings: Any) -> str:
        text = dumps(*arguments, **settings)
        written.append(len(text))
        return text

    record = long_record(character * 5_000_000)
    monkeypatch.setattr(json, "dumps", counting)
    text = fit(record, room)
    assert text is not None
    assert room - 100 < len(text) <= room
    assert sum(written) < 1_000_000 + 4 * room


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"failure": {"reason": "fatal"}}, True),
        ({"failure": {}}, True),
        ({"failure": {"reason": "fatal"}, "carried": 0}, True),
        ({"failure": {"reason": "error"}, "carried": 0, "hops": 1}, False),
        ({"failure": {"reason": "error"}, "carried": 3, "hops": 2, "steps": {"slow": 1}}, False),
        ({"carried": 1, "hops": 1}, False),
        ({"due": NOW}, False),
        ({}, False),
    ],
    ids=[
        "a dead letter",
        "a dead letter without details",
        "a dead letter with a count",
        "a deferred copy",
        "a copy",
        "a copy that has not failed",
        "a parked message",
        "nothing",
    ],
)
def test_a_record_of_a_failure_without_a_copy_since_is_that_of_a_dead_letter(
    fields: dict[str, Any], expected: bool
) -> None:  # SPEC F2, F7
    assert is_dead_letter(fields) is expected
    record = {"v": 1, "sum": body_sum("body"), "id": "m1", **fields}
    assert Envelope(record, NOW).is_dead_letter is expected
