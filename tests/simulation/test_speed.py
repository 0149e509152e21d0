"""The sandbox is quick: 100,000 deliveries take some seconds (`make bench`), however many there are."""

from benchmarks.deliveries import measure

DELIVERIES = 3_000
MOST_SECONDS_EACH = 0.003  # dozens of times what one takes


def test_a_delivery_to_a_trivial_handler_takes_a_fraction_of_a_millisecond() -> None:
    sent, run, checked = measure(DELIVERIES)
    assert sent + run + checked < DELIVERIES * MOST_SECONDS_EACH
