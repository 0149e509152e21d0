"""How many invocations a mapping lets run at once. PLATFORM 15, 15a."""

from tarry.simulator.scaling import Scaling


def test_it_begins_with_five_and_adds_three_hundred_a_minute_while_more_is_wanted() -> None:
    scaling = Scaling()
    assert scaling.limit(0) == 5
    assert scaling.more_wanted(0) == 0.2
    assert [scaling.limit(now) for now in (0.1, 0.2, 1, 60)] == [5, 6, 10, 305]


def test_it_does_not_grow_while_nothing_more_is_wanted() -> None:
    scaling = Scaling()
    assert scaling.limit(3600) == 5
    scaling.more_wanted(3600)
    scaling.enough(3610, running=55)
    assert scaling.limit(7200) == 55


def test_with_nothing_left_to_do_it_is_back_where_it_began() -> None:
    scaling = Scaling()
    scaling.more_wanted(0)
    scaling.enough(10, running=0)
    assert scaling.limit(10) == 5


def test_it_grows_to_1250_and_no_further() -> None:
    scaling = Scaling()
    scaling.more_wanted(0)
    assert scaling.limit(248) == 1_245
    assert scaling.limit(249) == scaling.limit(3600) == 1_250
    assert scaling.more_wanted(3600) is None


def test_a_maximum_concurrency_bounds_it() -> None:
    scaling = Scaling(maximum=7)
    scaling.more_wanted(0)
    assert (scaling.limit(0), scaling.limit(60)) == (5, 7)
    assert Scaling(maximum=2).limit(0) == 2


def test_the_next_place_comes_when_it_says() -> None:
    """So that whoever waits for it does not ask again at the same time, for ever."""
    scaling, now = Scaling(), 1_800_000_000.0
    for limit in range(6, 100):
        when = scaling.more_wanted(now)
        assert when is not None
        assert when > now
        now = when
        assert scaling.limit(now) == limit


def test_a_function_error_lowers_it_and_it_grows_again() -> None:
    scaling = Scaling()
    scaling.more_wanted(0)
    scaling.failed(10, running=40)
    assert scaling.limit(10) == 20
    scaling.failed(10, running=1)
    assert scaling.limit(10) == 1
    scaling.more_wanted(10)
    assert scaling.limit(12) == 11


def test_fifo_is_bound_by_its_groups_and_not_by_a_slow_start() -> None:
    assert Scaling(is_fifo=True).limit(0) == 1_250
    assert Scaling(50, is_fifo=True).limit(0) == 50
