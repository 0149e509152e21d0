"""The scaling of an event source mapping (PLATFORM 15, 15a)."""

from tarry.tools.simulator.mapping_settings import Scaling


def test_concurrency_starts_at_five_and_grows_by_300_a_minute_under_load_to_1250_at_most() -> None:
    scaling = Scaling()
    assert scaling.limit(0) == 5
    assert scaling.more_wanted(0) == 0.2
    assert [scaling.limit(now) for now in (0.1, 0.2, 1, 60, 248, 249, 3600)] == [5, 6, 10, 305, 1_245, 1_250, 1_250]
    assert scaling.more_wanted(3600) is None


def test_concurrency_does_not_grow_without_load_and_returns_to_its_start_when_idle() -> None:
    scaling = Scaling()
    assert scaling.limit(3600) == 5
    scaling.more_wanted(3600)
    scaling.enough(3610, running=55)
    assert scaling.limit(7200) == 55
    scaling.more_wanted(7200)
    scaling.enough(7210, running=0)
    assert scaling.limit(7210) == 5


def test_a_maximum_concurrency_limits_the_growth_and_a_fifo_mapping_starts_at_it() -> None:
    scaling = Scaling(maximum=7)
    scaling.more_wanted(0)
    assert (scaling.limit(0), scaling.limit(60)) == (5, 7)
    assert Scaling(maximum=2).limit(0) == 2
    assert Scaling(is_fifo=True).limit(0) == 1_250
    assert Scaling(50, is_fifo=True).limit(0) == 50


def test_the_limit_rises_at_the_announced_time() -> None:
    """Otherwise a caller that waits until then would ask again at the same time, in an endless loop."""
    scaling, now = Scaling(), 1_800_000_000.0
    for limit in range(6, 100):
        when = scaling.more_wanted(now)
        assert when is not None
        assert when > now
        now = when
        assert scaling.limit(now) == limit


def test_concurrency_drops_on_a_function_error_and_grows_back() -> None:
    scaling = Scaling()
    scaling.more_wanted(0)
    scaling.failed(10, running=40)
    assert scaling.limit(10) == 20
    scaling.failed(10, running=1)
    assert scaling.limit(10) == 1
    scaling.more_wanted(10)
    assert scaling.limit(12) == 11
