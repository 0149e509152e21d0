"""The board: what is settled, what waits, and what is lost."""

import pytest

from tarry.local.story import LOST, Board, Step, Story, counts
from tarry.outcome import State

NOW = 1_000.0
RETRY = Step(State.WAITING_RETRY, 1, 60, "error", "ValueError: no")


@pytest.fixture
def board() -> Board:
    board = Board()
    board.sent("m", "orders", 1)
    board.delivered("m", "m", "orders", 1)
    return board


def story(board: Board) -> Story:
    found = board.find("m")
    assert found
    return found


def test_a_message_that_is_deleted_without_a_word_is_committed(board: Board) -> None:
    board.answered("m", None, visible_at=NOW + 30, now=NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> COMMITTED"
    assert board.is_settled


def test_a_message_that_goes_back_without_a_word_waits_for_its_visibility(board: Board) -> None:
    board.answered("m", "reported as failed", visible_at=NOW + 30, now=NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> WAITING_RETRY 30s"
    assert story(board).due == NOW + 30
    assert not board.is_settled


def test_what_tarry_told_stands(board: Board) -> None:
    board.told("m", RETRY, NOW)
    board.answered("m", "reported as failed", visible_at=NOW + 30, now=NOW)
    board.delivered("m", "m", "orders", 2)
    board.told("m", Step(State.DEAD_LETTERED, 2, reason="exhausted"), NOW)
    board.answered("m", None, visible_at=NOW + 30, now=NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> WAITING_RETRY 60s -> IN_FLIGHT 2 -> DEAD_LETTERED"
    assert counts(board.stories) == {"DEAD_LETTERED": 1}


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (RETRY, "ValueError: no"),
        (Step(State.WAITING_RETRY, 1, 60, "error"), "the handler asked for it"),
        (Step(State.DEAD_LETTERED, 5, None, "exhausted", "ValueError: no"), "exhausted: ValueError: no"),
        (Step(State.DEAD_LETTERED, 5, None, "exhausted"), "exhausted"),
        (Step(State.COMMITTED), ""),
    ],
)
def test_a_step_says_why_it_was_taken(step: Step, why: str) -> None:
    assert step.why == why


def test_a_retry_that_was_not_reported_is_a_loss(board: Board) -> None:
    board.told("m", RETRY, NOW)
    board.answered("m", None, visible_at=NOW + 30, now=NOW)
    assert story(board).now.state == LOST


def test_a_final_word_on_a_message_that_goes_back_is_not_final(board: Board) -> None:
    board.told("m", Step(State.DEAD_LETTERED, 1), NOW)
    board.answered("m", "whole batch failed", visible_at=NOW + 30, now=NOW)
    assert not board.is_settled


def test_a_copy_goes_on_with_the_story_of_its_original(board: Board) -> None:
    board.told("m", Step(State.RESENT, 1), NOW)
    board.answered("m", None, visible_at=NOW, now=NOW)
    assert not board.is_settled
    board.delivered("copy", "m", "slow", 1)
    board.told("copy", Step(State.DISCARDED, 1), NOW)
    board.answered("copy", None, visible_at=NOW, now=NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> RESENT -> IN_FLIGHT 1 -> DISCARDED"
    assert board.is_settled


def test_waiting_is_given_up_only_where_tarry_said_how_long(board: Board) -> None:
    board.answered("m", "reported as failed", visible_at=NOW + 900, now=NOW)
    assert not board.is_hopeless(until=NOW + 100)  # a handler may have changed the visibility without a word
    board.delivered("m", "m", "orders", 2)
    board.told("m", RETRY, NOW)
    assert board.is_hopeless(until=NOW + 50)
    assert not board.is_hopeless(until=NOW + 70)


def test_a_message_that_is_deferred_as_a_copy_goes_on_as_that_copy() -> None:
    board = Board()
    board.sent("m", "orders")
    board.delivered("m", "m", "orders", 1)
    board.told("m", Step(State.DEFERRED, 1, 30, as_copy=True), NOW)
    board.answered("m", None, NOW + 60, NOW)
    board.delivered("copy", "m", "orders", 1)
    board.answered("copy", None, NOW + 60, NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> DEFERRED 30s -> IN_FLIGHT 1 -> COMMITTED"
