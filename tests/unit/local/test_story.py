"""The board: what is settled, what waits, and what is lost."""

from typing import Any

import pytest

from tarry.local.story import LOST, Board, Story, counts
from tarry.outcome import State
from tarry.testing import Transition
from tarry.testing.story import because

NOW = 1_000.0


def step(state: State, delivery_id: str = "m", **more: Any) -> Transition:
    return Transition(NOW, state, delivery_id, "orders", **more)


RETRY = step(State.WAITING_RETRY, attempt=1, delay=60, why="ValueError: no")


@pytest.fixture
def board() -> Board:
    board = Board()
    board.sent("m", "orders", 1)
    board.delivered("m", "m", "orders", 1, NOW)
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
    assert str(story(board)) == "IN_FLIGHT 1 -> WAITING_RETRY 30 s"
    assert story(board).due == NOW + 30
    assert not board.is_settled


def test_what_tarry_told_stands(board: Board) -> None:
    board.told(RETRY)
    board.answered("m", "reported as failed", visible_at=NOW + 30, now=NOW)
    board.delivered("m", "m", "orders", 2, NOW)
    board.told(step(State.DEAD_LETTERED, attempt=2, why="exhausted"))
    board.answered("m", None, visible_at=NOW + 30, now=NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> WAITING_RETRY 1 min -> IN_FLIGHT 2 -> DEAD_LETTERED"
    assert counts(board.stories) == {"DEAD_LETTERED": 1}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"reason": "error", "error": "ValueError: no"}, "ValueError: no"),
        ({"reason": "error"}, "the handler asked for it"),
        ({"state": "DEAD_LETTERED", "reason": "exhausted", "error": "ValueError: no"}, "exhausted: ValueError: no"),
        ({"state": "DEAD_LETTERED", "reason": "exhausted"}, "exhausted"),
        ({"reason": "exhausted", "not_sent": "AccessDenied"}, "AccessDenied"),
        ({}, ""),
    ],
)
def test_what_tarry_says_of_a_message_tells_why_it_is_there(said: dict[str, str], why: str) -> None:
    assert because({"state": "WAITING_RETRY", **said}) == why


def test_a_retry_that_was_not_reported_is_a_loss(board: Board) -> None:
    board.told(RETRY)
    board.answered("m", None, visible_at=NOW + 30, now=NOW)
    assert story(board).state == LOST
    assert str(story(board)) == "IN_FLIGHT 1 -> WAITING_RETRY 1 min -> LOST"


def test_a_final_word_on_a_message_that_goes_back_is_not_final(board: Board) -> None:
    board.told(step(State.DEAD_LETTERED))
    board.answered("m", "whole batch failed", visible_at=NOW + 30, now=NOW)
    assert not board.is_settled


def test_a_copy_goes_on_with_the_story_of_its_original(board: Board) -> None:
    board.told(step(State.RESENT))
    board.answered("m", None, visible_at=NOW, now=NOW)
    assert not board.is_settled
    board.delivered("copy", "m", "slow", 1, NOW)
    board.told(step(State.DISCARDED, "copy"))
    board.answered("copy", None, visible_at=NOW, now=NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> RESENT -> IN_FLIGHT 1 -> DISCARDED"
    assert board.is_settled


def test_waiting_is_given_up_only_where_tarry_said_how_long(board: Board) -> None:
    board.answered("m", "reported as failed", visible_at=NOW + 900, now=NOW)
    assert not board.is_hopeless(until=NOW + 100)  # a handler may have changed the visibility without a word
    board.delivered("m", "m", "orders", 2, NOW)
    board.told(RETRY)
    assert board.is_hopeless(until=NOW + 50)
    assert not board.is_hopeless(until=NOW + 70)


def test_a_message_that_is_deferred_as_a_copy_goes_on_as_that_copy() -> None:
    board = Board()
    board.sent("m", "orders")
    board.delivered("m", "m", "orders", 1, NOW)
    board.told(step(State.DEFERRED, delay=30, sent_on=True))
    board.answered("m", None, NOW + 60, NOW)
    board.delivered("copy", "m", "orders", 1, NOW)
    board.answered("copy", None, NOW + 60, NOW)
    assert str(story(board)) == "IN_FLIGHT 1 -> DEFERRED 30 s -> IN_FLIGHT 1 -> COMMITTED"
