"""Short reasons of states, for a terminal."""

import pytest

from tarry.tooling.text import brief


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
