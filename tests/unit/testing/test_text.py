"""Short reasons of states, for a terminal."""

import pytest

from tarry.failed.text import MAX_LINE_CHARACTERS, brief, one_line


@pytest.mark.parametrize(
    ("why", "shortened"),
    [
        ("fatal: shop.errors.UnknownCarrier: parcel p-504", "fatal: UnknownCarrier: parcel p-504"),
        ("rejected: tarry.errors.Reject: no stock", "rejected: no stock"),
        (
            "undecodable: tarry.errors.Undecodable: the body of message 7353abf2 does not fit Scan: no parcel",
            "undecodable: the body does not fit Scan: no parcel",
        ),
    ],
)
def test_a_reason_is_shortened_by_modules_and_prefixes(why: str, shortened: str) -> None:
    assert brief(why) == shortened


PYDANTIC = """2 validation errors for Order
id
  Input should be a valid integer [type=int_parsing]
    For further information visit https://errors.pydantic.dev/2.13/v/int_parsing
name
  Field required [type=missing]
    For further information visit https://errors.pydantic.dev/2.13/v/missing"""
POWERTOOLS = """BatchProcessingError: All records failed processing. 2 individual errors logged separately below.

Traceback (most recent call last):
  File "base.py", line 564, in _process_record
    result = self.handler(record=data)
             ^^^^^^^^^^^^^^^^^^^^^^^^^
app.CardDeclined: order 1

Traceback (most recent call last):
  File "app.py", line 8, in charge
app.CardDeclined: order 2
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x" * 1_000, "x" * (MAX_LINE_CHARACTERS - 3) + "..."),
        ("\x1b[31m", "\\x1b[31m"),
        (
            PYDANTIC,
            "2 validation errors for Order; id: Input should be a valid integer [type=int_parsing]; "
            "name: Field required [type=missing]",
        ),
        (
            POWERTOOLS,
            "BatchProcessingError: All records failed processing. 2 individual errors logged separately below. "
            "app.CardDeclined: order 1; app.CardDeclined: order 2",
        ),
    ],
)
def test_an_error_is_one_line_without_the_frames_of_its_text(text: str, line: str) -> None:
    assert one_line(text) == line
