"""The limits of SQS requests: ten entries, 1 MiB."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.sqs.refusals import MAX_REQUEST_BYTES, message_size, requests_of, tens, utf8_length


@given(st.lists(st.integers(), max_size=105))
def test_tens_split_entries_in_order_into_as_few_requests_as_possible(entries: list[int]) -> None:  # SPEC G1
    requests = list(tens(entries))
    assert [entry for request in requests for entry in request] == entries
    assert len(requests) == -(-len(entries) // 10)
    assert all(1 <= len(request) <= 10 for request in requests)


@given(st.lists(st.integers(0, MAX_REQUEST_BYTES), max_size=60))
def test_requests_have_at_most_ten_entries_and_1_mib_and_keep_the_order(sizes: list[int]) -> None:  # SPEC E6
    requests = list(requests_of((index, size) for index, size in enumerate(sizes)))
    assert [entry for request in requests for entry in request] == list(range(len(sizes)))
    for request in requests:
        assert 1 <= len(request) <= 10
        assert sum(sizes[entry] for entry in request) <= MAX_REQUEST_BYTES


@given(st.lists(st.integers(0, MAX_REQUEST_BYTES), max_size=60))
def test_a_request_ends_only_if_the_next_entry_does_not_fit(sizes: list[int]) -> None:  # SPEC E6
    requests = list(requests_of((index, size) for index, size in enumerate(sizes)))
    for request, following in pairwise(requests):
        full = len(request) == 10
        assert full or sum(sizes[entry] for entry in [*request, following[0]]) > MAX_REQUEST_BYTES


def test_an_entry_that_is_too_large_for_any_request_is_sent_alone() -> None:  # SPEC E6
    assert list(requests_of([("a", 1), ("b", MAX_REQUEST_BYTES + 1), ("c", 1)])) == [["a"], ["b"], ["c"]]


def test_a_request_may_have_exactly_1_mib() -> None:  # SPEC E6
    sizes = [MAX_REQUEST_BYTES - 1, 1, 1, MAX_REQUEST_BYTES - 1, 1, 1]
    assert list(requests_of(enumerate(sizes))) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("text", "length"), [("", 0), ("abc", 3), ("é", 2), ("€", 3), ("😀", 4), ("\ud800", 3), ("a\x00b", 3)], ids=ascii
)
def test_the_length_of_a_text_is_its_bytes_in_utf_8(text: str, length: int) -> None:  # SPEC J2
    assert utf8_length(text) == length


def test_the_size_of_a_message_includes_names_types_and_values_of_attributes() -> None:  # SPEC F3
    attributes: dict[str, dict[str, Any]] = {
        "tenant": {"DataType": "String", "StringValue": "é"},
        "raw": {"DataType": "Binary.png", "BinaryValue": b"\xff\x00\x01"},
    }
    body = len("😀".encode())
    tenant, raw = len("tenant") + len("String") + 2, len("raw") + len("Binary.png") + 3
    assert message_size("😀", attributes) == body + tenant + raw
