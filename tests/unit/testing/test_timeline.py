"""A message's story, as text to read."""

import pytest

from tarry.tooling.text import brief


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("fatal: shop.errors.UnknownCarrier: parcel p-504", "fatal: UnknownCarrier: parcel p-504"),
        ("rejected: tarry.errors.Reject: no stock", "rejected: no stock"),
        (
            "undecodable: tarry.errors.Undecodable: the body of message 7353abf2 does not fit Scan: no parcel",
            "undecodable: the body does not fit Scan: no parcel",
        ),
    ],
)
def test_a_line_has_room_for_what_is_not_said_already(why: str, told: str) -> None:
    assert brief(why) == told
