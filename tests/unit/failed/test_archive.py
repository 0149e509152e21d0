"""Lines of an archive: read back as they were written, or refused as damaged."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tarry.failed.archive import VERSION, ArchivedMessage, ArchiveMark, DamagedLine, checksum, read_line

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=8,
)
RECORDS = st.fixed_dictionaries(
    {
        "messageId": st.text(),
        "body": st.text(st.characters()),  # lone surrogates as well
        "eventSourceARN": st.just("arn:aws:sqs:us-east-1:123456789012:orders-dlq"),
        "attributes": st.dictionaries(st.text(), st.text(), max_size=3),
        "messageAttributes": st.dictionaries(st.text(), st.dictionaries(st.text(), JSON, max_size=2), max_size=2),
    },
    optional={"other": JSON},
)


def line_of(record: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, "id": "id-1", "sum": checksum(record), "record": record}).encode()


@given(RECORDS, st.data())
def test_a_line_is_read_back_as_it_was_or_refused_when_it_is_cut_or_a_byte_has_changed(
    record: dict[str, Any], data: st.DataObject
) -> None:
    line = line_of(record)
    assert read_line(line) == ArchivedMessage("id-1", record, is_marked=True)
    place = data.draw(st.integers(0, len(line) - 1))
    changed = line[:place] + bytes([data.draw(st.integers(0, 255))]) + line[place + 1 :]
    for damaged in (line[:place], changed):
        try:
            found = read_line(damaged)
        except DamagedLine:
            continue
        assert isinstance(found, ArchivedMessage)
        assert found.record == record


@given(JSON, st.sampled_from([1, VERSION, VERSION + 1, None, "2"]), st.sampled_from(["", "sum", "kept", "deleted"]))
def test_whatever_another_program_has_written_is_read_or_refused(value: Any, version: Any, key: str) -> None:
    found = {"v": version, "id": "id-1", "record": value, key: value}
    if key == "sum" and isinstance(value, dict):
        found["sum"] = checksum(value)
    for line in (json.dumps(found), json.dumps(value), "[" * 100_000):
        try:
            assert isinstance(read_line(line.encode()), ArchivedMessage | ArchiveMark)
        except DamagedLine:
            continue
