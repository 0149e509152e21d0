"""The `Tarry` record: reading it, refusing it, and trimming it to a size limit."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarry.message.failure_record import fit, smallest
from tarry.record.attribute import (
    Envelope,
    FailureRecord,
    UnreadableRecord,
    body_sum,
    dump,
    is_dead_letter,
    is_ours,
    next_history,
    read_envelope,
    timestamp,
)
from tarry.support.values import fields_of

NOW = 1_800_000_200.0
BODY = '{"id": 1}'


def attribute(written: Any) -> dict[str, Any]:
    return {"stringValue": written if isinstance(written, str) else json.dumps(written), "dataType": "String"}


def a_record(**more: Any) -> dict[str, Any]:
    return {"v": 1, "sum": body_sum(BODY), "id": "m1", **more}


def read(**more: Any) -> Any:
    return read_envelope(attribute(a_record(**more)), BODY, NOW)


# reading


def test_a_field_that_a_record_lacks_is_0_empty_or_none() -> None:  # DESIGN 3
    envelope = read()
    assert (envelope.id, envelope.carried, envelope.hops, dict(envelope.steps)) == ("m1", 0, 0, {})
    assert (envelope.origin, envelope.sent, envelope.due, envelope.failure) == (None, None, None, None)
    empty = dict.fromkeys(FailureRecord._names) | {"attempts_at_most": False, "history": ()}
    assert fields_of(FailureRecord({})) == fields_of(FailureRecord({"attempts_at_most": 1})) == empty
    assert FailureRecord({"attempts_at_most": True}).attempts_at_most is True


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("1970-01-01T00:00:00Z", True), ("1969-12-31T23:59:59Z", False), ("9999-12-31T23:59:59.999Z", True),
        ("9999-12-31T23:00:00-01:00", False), ("0001-01-01T00:00:00+01:00", False), ("2026-01-01T00:00:00", False),
        ("2026-01-01T01:00:00+01:00", True), ("soon", False), ("", False),
    ],
)  # fmt: skip
def test_a_time_is_one_with_an_offset_from_1970_to_9999(text: str, is_kept: bool) -> None:  # DESIGN 3
    envelope = read(sent=text, edited=text, failure={"failed_at": text, "first_failed_at": text})
    times = (envelope.sent, envelope.edited, envelope.failure.failed_at, envelope.failure.first_failed_at)
    assert times == (text if is_kept else None,) * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"carried": 0}, {"carried": 1_000}, {"hops": 1_000}, {"steps": {"a": 0, "b": 1_000}}, {"due": 0}, {"due": NOW},
        {"due": NOW + 366 * 86_400}, {"failure": None}, {"history": []}, {"unknown": {"of": "a later version"}},
        {"failure": {"attempts": 1_000_000}}, {"notes": {"lane": "x" * 256}},
        *({"failure": {}, "extra": extra} for extra in (5, ["a"], "x", None)),
    ],
    ids=str,
)  # fmt: skip
def test_values_within_their_ranges_are_accepted(fields: dict[str, Any]) -> None:  # DESIGN 3, SPEC F6
    envelope = read(**fields)
    assert envelope.id == "m1"
    assert not envelope.failure or envelope.failure.extra is None  # an extra that is not an object


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2}, {"v": None}, {"v": "1"}, {"v": True}, {"v": 1.0},
        {"sum": ""}, {"sum": None}, {"sum": 7}, {"sum": body_sum(BODY + " ")}, {"id": None}, {"id": ""}, {"id": 5},
        {"carried": -1}, {"carried": 1_001}, {"carried": 0.5}, {"carried": "1"}, {"carried": False}, {"carried": None},
        {"hops": -1}, {"hops": 1_001}, {"steps": {"a": -1}}, {"steps": {"a": 1_001}}, {"steps": {"a": True}},
        {"steps": {"a": "2"}}, {"steps": 5}, {"steps": [1]},
        {"due": -1}, {"due": NOW + 366 * 86_400 + 1}, {"due": float("inf")}, {"due": float("nan")}, {"due": True},
        {"due": "1"}, {"origin": 7}, {"origin": ["orders"]}, {"sent": 7}, {"history": "x"}, {"failure": "x"},
        {"failure": []}, {"failure": ["x"]}, {"failure": {"type": 5}}, {"failure": {"message": {"x": 1}}},
        {"failure": {"attempts": -1}}, {"failure": {"attempts": 1.5}}, {"failure": {"attempts": 1_000_001}},
        {"notes": 5}, {"notes": ["a"]}, {"notes": "x"}, {"notes": {"lane": 5}}, {"notes": {"lane": None}},
        {"notes": {"lane": ["x"]}}, {"notes": {"lane": "x" * 257}},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_range_makes_the_record_unreadable_and_is_named(fields: dict[str, Any]) -> None:  # DESIGN 3
    [name] = fields
    texts = {"v": "its version is", "sum": "another body", "failure": "failure|type|message|attempts"}
    with pytest.raises(UnreadableRecord, match=texts.get(name, name)):
        read(**fields)


@pytest.mark.parametrize(
    ("odd", "ours"),
    [
        (attribute(a_record()), True), (attribute(a_record(carried=-1)), True), (attribute({"v": 9, "sum": "x"}), True),
        *((attribute(text), False) for text in ('{"id": "m1"}', "[]", "null", "", "not json", "[" * 100_000)),
        ({}, False), ({"stringValue": None}, False), ({"binaryValue": "AAEC", "dataType": "Binary"}, False),
        ({"stringValue": 7}, False), ("text", False), (7, False), (["x"], False),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_an_attribute_with_the_shape_of_a_record_is_ours_even_if_it_is_unreadable(odd: Any, ours: bool) -> None:
    assert is_ours(odd) is ours  # SPEC F3, K1
    if not ours:
        with pytest.raises(UnreadableRecord):
            read_envelope(odd, BODY, NOW)


def test_a_body_of_lone_surrogates_has_a_sum() -> None:  # DESIGN 3
    assert len({body_sum("\ud800"), body_sum("\ud801")}) == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"failure": {"reason": "fatal"}}, True),
        ({"failure": {}}, True),
        ({"failure": {"reason": "fatal"}, "carried": 0}, True),
        ({"failure": {"reason": "error"}, "carried": 0, "hops": 1}, False),  # a deferred copy
        ({"failure": {"reason": "error"}, "carried": 3, "hops": 2, "steps": {"slow": 1}}, False),
        ({"carried": 1, "hops": 1}, False),
        ({"due": NOW}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_record_of_a_failure_without_a_copy_since_is_that_of_a_dead_letter(fields: Any, expected: bool) -> None:
    assert is_dead_letter(fields) is expected  # SPEC F2, F7
    assert Envelope(a_record(**fields), NOW).is_dead_letter is expected


# writing


def test_times_are_iso_8601_in_utc() -> None:  # SPEC F2
    assert timestamp(1_767_225_600.5) == "2026-01-01T00:00:00.500Z"


@given(st.text(st.characters()))
def test_a_record_is_ascii_without_control_characters(text: str) -> None:  # DESIGN 3
    written = dump(a_record(failure={"message": text}))
    assert all(" " <= character <= "~" for character in written)
    assert json.loads(written)["failure"]["message"] == text


@pytest.mark.parametrize(
    "odd", [float("nan"), float("inf"), object(), {1, 2}], ids=["NaN", "infinity", "object", "set"]
)
def test_a_value_that_json_cannot_represent_is_refused(odd: object) -> None:  # DESIGN 3
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
    assert [len(next_history((), 1, "now", "E" * length)[0]["error"]) for length in (299, 300, 301)] == [299, 300, 300]


# fitting

FRAMES = "".join(
    f'  File "/var/task/app.py", line {line}, in function_{line}\n    step_{line}()\n' for line in range(200)
)
TRACEBACK = f"{FRAMES}app.Declined"
FRAME = '  File "/var/task/generated.py", line 1, in generated\n    '
WIDE = f"{FRAMES}{FRAME}{'é' * 9_000}\napp.Declined"
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


def bare_record(message: str, traceback: str = "") -> dict[str, Any]:
    """Return a record of a failure without a history."""
    failure = {"message": message, **({"traceback": traceback} if traceback else {})}
    return a_record(failure={"reason": "fatal", "type": "app.Declined", **failure})


def fitted(record: dict[str, Any], room: int) -> Any:
    text = fit(record, room)
    assert text is not None
    assert len(text) <= room
    return json.loads(text)


any_text = st.text(st.characters(), max_size=3_000) | st.sampled_from(
    ["\x00" * 2_000, "\ud800" * 2_000, "😀" * 2_000, "\\" * 2_000, '"' * 2_000, "x" * 100_000, "é" * 5_000, ""]
)
COUNTERS = {"carried": 3, "due": NOW, "hops": 2, "steps": {"slow": 2}}


@settings(max_examples=200)
@given(
    message=any_text,
    traceback=any_text | st.just(TRACEBACK) | st.just(WIDE),
    room=st.integers(-10, 8_000) | st.sampled_from([1_000, 12_000, 60_000]),
    more=st.sampled_from([{}, COUNTERS, {"extra": {"order": 7}}, {"extra": {"order": "x" * 50_000}}]),
)
@example(message="x" * 200_000, traceback=TRACEBACK, room=1_000, more={})
@example(message="\x00" * 50_000, traceback=TRACEBACK, room=1_000, more={"extra": {"order": "x" * 50_000}})
@example(message="😀" * 50_000, traceback=WIDE, room=12_000, more={})
@example(message="no", traceback="", room=6_000, more={})
@example(message="x" * 10_000, traceback=TRACEBACK, room=600, more=COUNTERS)
def test_a_record_is_cut_to_the_room_and_keeps_its_counters_its_innermost_frames_and_the_beginning_of_its_message(
    message: str, traceback: str, room: int, more: Any
) -> None:  # SPEC E6, F3, F6
    whole = long_record(message, traceback, **more)
    before = dump(whole)
    text = fit(whole, room)
    assert dump(whole) == before, "`fit` changed its argument"
    assert text == before or len(before) > room
    if text is None:
        assert len(dump(smallest(whole))) > room
        return
    assert len(text) <= room
    assert all(" " <= character <= "~" for character in text)
    kept = json.loads(text)
    failure = kept.pop("failure")
    for optional in ("history", "extra"):
        assert kept.pop(optional, whole.get(optional)) == whole.get(optional)
    assert kept == {name: value for name, value in whole.items() if name not in ("failure", "history", "extra")}
    assert (failure["reason"], failure["attempts"]) == ("exhausted", 5)
    assert read_envelope(attribute(text), BODY, NOW).failure is not None
    shown = failure.get("message", "")
    assert shown == message or message.startswith(shown.removesuffix("..."))
    frames = failure.get("traceback", "")
    last = traceback.rindex("  File") if traceback in (TRACEBACK, WIDE) else 0  # of one that is too long, the start
    assert traceback.endswith(frames.removeprefix("...\n")) or traceback[last:].startswith(frames.removesuffix("..."))
    if traceback in (TRACEBACK, WIDE) and room >= 1_000:
        assert (INNERMOST if traceback == TRACEBACK else FRAME) in frames
        assert frames.startswith(("...\n  File", "  File")), "the cut is within a frame"
        assert shown[:2] == message[:2]


def test_the_traceback_is_cut_before_the_message_which_is_cut_at_its_end() -> None:  # SPEC F3
    whole = long_record("m" * 500, history=[])
    failure = fitted(whole, len(dump(whole)) - 5_000)["failure"]
    assert (failure["message"], INNERMOST in failure["traceback"]) == ("m" * 500, True)
    assert "in function_0\n" not in failure["traceback"]
    wide = fitted(long_record("no", WIDE, history=[]), 2_000)["failure"]["traceback"]
    assert (wide.startswith(f"{FRAME}éé"), wide[-3:]) == (True, "...")
    short = "Traceback (most recent call last):\n" + FRAME
    assert fitted(long_record("m" * 50_000, short), 2_000)["failure"]["traceback"] == short


def test_as_much_is_kept_as_fits_and_the_extra_of_a_hook_displaces_no_part_of_the_failure() -> None:  # SPEC F3, F6
    shorter = [fitted(long_record("m" * 3_000), room) for room in range(5_000, 5_200)]
    assert min(len(each["failure"]["message"]) for each in shorter if "history" in each) == 256
    assert fitted(long_record("x" * 50_000, extra={"order": 7}), 2_500)["extra"] == {"order": 7}
    for room in (1_500, 3_000):
        kept = fitted(long_record("no", extra={"order": "x" * 50_000}), room)
        assert (kept["failure"]["type"], kept["failure"]["message"], "extra" in kept) == ("app.Declined", "no", False)


BASE = len(dump(bare_record("")))
BLOCK = 4_096


@pytest.mark.parametrize("budget", [9, 300, *(BLOCK * blocks + more for blocks in (1, 2) for more in range(-1, 6))])
@pytest.mark.parametrize("character", ["x", "é"])
def test_as_many_characters_of_a_message_are_kept_as_fit(budget: int, character: str) -> None:  # SPEC F3
    size = len(dump(character)) - 2
    for length in (budget // size + 1, 20_000):
        text = fit(bare_record(character * length), BASE + budget)
        kept = (budget - 3) // size
        assert text == dump(bare_record(character * kept + "..."))
    whole = bare_record("x" * budget)
    assert fit(whole, BASE + budget) == dump(whole)
    assert len(fit(whole, BASE + budget - 1) or "") == BASE + budget - 1


def test_as_many_frames_are_kept_as_fit() -> None:  # SPEC F3
    frame = '  File "/var/task/app.py", line 1, in handler\n    step()\n'
    name, room = "app.Declined", len(dump(bare_record("no", "x"))) - 1
    ellipsis, size = len(dump("...\n")) - 2, len(dump(frame)) - 2
    for kept in (20, 21, 300):
        exact = room + ellipsis + kept * size + len(name)
        for more, frames in ((0, kept), (-1, kept - 1)):
            found = fitted(bare_record("no", frame * 1_000 + name), exact + more)["failure"]
            assert found["traceback"] == f"...\n{frame * frames}{name}"
    chain = "\n\nwhich led to\n\n".join(["app.Declined"] * 500)  # of errors that were never raised
    found = fitted(bare_record("no", chain), room + 2_000)["failure"]["traceback"]
    assert (chain.startswith(found[:-3]), found[-3:], len(dump(found)) - 2) == (True, "...", 1_999)


def test_the_least_sizes_of_traceback_and_message_shrink_only_when_all_else_is_left_out() -> None:  # SPEC F3
    whole = bare_record("m" * 10_000, f"{FRAME}{'t' * 10_000}")
    base = BASE + len(',"traceback":""')
    for room, sizes in {
        1_024 + 256: (1_024, 256), 1_024 + 255: (512, 767), 512 + 128: (512, 128), 512 + 127: (256, 383),
        256 + 64: (256, 64),
    }.items():  # fmt: skip
        failure = fitted(whole, base + room)["failure"]
        assert (len(dump(failure["traceback"])) - 2, len(failure["message"])) == sizes
    failure = fitted(whole, base + 256 + 63)["failure"]
    assert ("traceback" in failure, len(failure["message"])) == (False, 256 + 63 + base - BASE)
    kept = fitted(record := bare_record("no", "x"), len(dump(record)) - 1)["failure"]
    assert ("traceback" in kept, kept["message"]) == (False, "no")
    whole["failure"]["message"] = "m" * 256
    assert fitted(whole, base + 1_024 + 256)["failure"]["message"] == "m" * 256


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

    whole = long_record(character * 5_000_000)
    monkeypatch.setattr(json, "dumps", counting)
    text = fit(whole, room)
    assert text is not None
    assert room - 100 < len(text) <= room
    assert sum(written) < 1_000_000 + 4 * room
