"""The failure record beside the error: the text of a verdict, and the dict that ``enrich`` added."""

from typing import Any

import pytest

from tarry import DeadLetter, Failure, Message, Outcome, Reject, Retry, RetryInPlace, consumer, failed
from tarry.cli.failed.rendering import details
from tarry.failed.dead_letters import as_json
from tarry.testing import Sandbox
from tests.integration.test_steps import orders
from tests.loglines import field, lines
from tests.records import Context, batch_of


class CardDeclined(Reject):
    reason = "the card was declined"


def told(handler: Any, **settings: Any) -> dict[str, Any]:
    """The failure in the record of a dead letter."""
    with orders() as wire:
        consumer(**settings)(handler)(batch_of(1), Context())
    [record] = wire.records()
    failure: dict[str, Any] = record["failure"]
    return failure


def rejects(message: Message) -> None:
    try:
        raise LookupError("no customer 7")
    except LookupError as error:
        raise Reject("the customer is gone") from error


# said


def test_a_rejection_from_an_error_tells_both(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F2
    failure = told(rejects)
    assert (failure["type"], failure["message"], failure["reason"]) == ("LookupError", "no customer 7", "rejected")
    assert failure["said"] == "the customer is gone"
    [line] = lines(caplog, "dead_lettered")
    assert (field(line, "said"), field(line, "error")) == ("the customer is gone", "LookupError: no customer 7")


def test_a_verdict_of_the_users_tells_its_own_reason() -> None:  # SPEC B3, F2
    def handler(message: Message) -> None:
        raise CardDeclined from LookupError("no card")

    assert (told(handler)["type"], told(handler)["said"]) == ("LookupError", "the card was declined")


def test_an_error_raised_from_a_rejection_tells_both() -> None:  # SPEC B3, F2
    def handler(message: Message) -> None:
        raise RuntimeError("out") from Reject("the customer is gone")

    assert (told(handler)["type"], told(handler)["said"]) == ("RuntimeError", "the customer is gone")


def reject_alone(message: Message) -> None:
    raise Reject("the customer is gone")


def reject_without_a_text(message: Message) -> None:
    raise Reject from LookupError("no customer 7")


def retry_to_the_end(message: Message) -> None:
    raise Retry(30) from LookupError("no customer 7")


@pytest.mark.parametrize("handler", [reject_alone, reject_without_a_text, retry_to_the_end])
def test_said_is_only_there_for_a_text_beside_an_error(handler: Any) -> None:  # SPEC F2
    assert "said" not in told(handler, max_attempts=1)


def test_a_step_sees_the_text_too() -> None:  # SPEC E5
    seen: list[str | None] = []

    def step(failure: Failure, next_step: Any) -> Outcome:
        seen.append(failure.said)
        return next_step(failure)

    told(rejects, on_failure=[step, RetryInPlace(), DeadLetter()])
    assert seen == ["the customer is gone"]


def test_a_redaction_sees_the_text() -> None:  # SPEC F3
    def mask(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "failure": {**record["failure"], "said": "****"}}

    assert told(rejects, on_failure=[DeadLetter(redact=mask)])["said"] == "****"


def test_a_huge_text_is_cut_and_the_error_stays(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    def handler(message: Message) -> None:
        raise Reject("x" * 1_100_000) from LookupError("no customer 7")

    failure = told(handler)
    assert failure["message"] == "no customer 7"
    assert failure["said"] == "x" * 1_000


# extra


def enriched(failure: Failure) -> dict[str, Any]:
    return {"tenant": "acme", "lines": [1, 2.5, None]}


@pytest.fixture
def shop(sandbox: Sandbox) -> Sandbox:
    handler = consumer(on_failure=[DeadLetter(enrich=enriched)])(rejects)
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", {})
    sandbox.run()
    return sandbox


def test_a_dead_letter_tells_what_enrich_added(shop: Sandbox) -> None:  # SPEC F6
    [letter] = shop.messages("orders-dlq")
    assert letter.failure is not None
    assert letter.failure.extra == {"tenant": "acme", "lines": [1, 2.5, None]}
    assert letter.failure.said == "the customer is gone"


def test_a_handler_reads_both_of_a_message_that_was_sent_back(sandbox: Sandbox) -> None:  # SPEC F6, K3
    seen: list[Any] = []

    @consumer(on_failure=[DeadLetter(enrich=enriched)])
    def handler(message: Message) -> None:
        if message.failure is None:
            rejects(message)
        else:
            seen.append((message.failure.extra, message.failure.said))

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", {})
    sandbox.run()
    with failed.opened("orders-dlq") as look:
        list(failed.retry(look, failed.select(everything=True), failed.Routes(look.queue)))
    sandbox.run()
    assert seen == [({"tenant": "acme", "lines": [1, 2.5, None]}, "the customer is gone")]


def test_without_enrich_there_is_no_extra(sandbox: Sandbox) -> None:  # SPEC F6
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(consumer(reject_alone), "orders")
    sandbox.send("orders", {})
    sandbox.run()
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    assert (letter.failure.extra, letter.failure.said) == (None, None)


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("extra.tenant = acme", 1),
        ("extra.tenant = other", 0),
        ("extra.lines[0] = 1", 1),
        ("said ~ customer is", 1),
        ("said = 'the customer is gone'", 0),
        ('said = "the customer is gone"', 1),
    ],
)
def test_a_filter_finds_dead_letters_by_both(shop: Sandbox, where: str, count: int) -> None:  # SPEC M2, F6
    with failed.opened("orders-dlq") as look:
        assert len(failed.show(look, failed.select(where=[where])).dead_letters) == count


def test_show_prints_both(shop: Sandbox) -> None:  # SPEC M2, F6
    from rich.console import Console

    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select(everything=True)).dead_letters
    console = Console(width=200)
    with console.capture() as capture:
        console.print(details(letter))
    assert "verdict" in capture.get()
    assert "the customer is gone" in capture.get()
    assert '{"tenant": "acme", "lines": [1, 2.5, null]}' in capture.get()
    shown = as_json(letter)["failure"]
    assert shown["said"] == "the customer is gone"
    assert shown["extra"] == {"tenant": "acme", "lines": [1, 2.5, None]}
