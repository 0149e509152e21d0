"""The speed of the sandbox: 100,000 deliveries take a few seconds (`make bench`)."""

from benchmarks.deliveries import measure

DELIVERIES = 3_000
MAX_SECONDS_PER_DELIVERY = 0.003  # dozens of times as much as a delivery takes


def test_a_delivery_to_a_trivial_handler_takes_a_fraction_of_a_millisecond() -> None:
    sent, run, checked = measure(DELIVERIES)
    assert sent + run + checked < DELIVERIES * MAX_SECONDS_PER_DELIVERY
