"""Fields of the failure record beside the error: the text of a verdict, and the dict that ``enrich`` adds."""

from typing import Any

import pytest

from tarry import DeadLetter, Failure, Message, Outcome, Reject, Retry, RetryInPlace, consumer, failed
from tarry.failed.dead_letters import as_json
from tarry.testing import Sandbox
from tarry.tools.cli.failed.rendering import details
from tests.integration.test_failure_steps import orders
from tests.loglines import field, lines
from tests.records import Context, batch_of


class DeclinedWithReason(Reject):
    reason = "the card was declined"


def failure_of(handler: Any, **settings: Any) -> dict[str, Any]:
    """Return the failure record of a dead letter of the handler."""
    with orders() as wire:
        consumer(**settings)(handler)(batch_of(1), Context())
    [envelope] = wire.envelopes()
    failure: dict[str, Any] = envelope["failure"]
    return failure


def rejects(message: Message) -> None:
    try:
        raise LookupError("no customer 7")
    except LookupError as error:
        raise Reject("the customer is gone") from error


def test_the_failure_record_names_an_error_of_tarry_without_its_file() -> None:  # SPEC F2
    generates = failure_of(lambda message: (each for each in [message]), max_attempts=1)
    assert generates["type"] == "tarry.HandlerNeverRan"


# said


def test_the_failure_record_of_a_reject_from_an_error_contains_both(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F2
    failure = failure_of(rejects)
    assert (failure["type"], failure["message"], failure["reason"]) == ("LookupError", "no customer 7", "rejected")
    assert failure["said"] == "the customer is gone"
    [line] = lines(caplog, "dead_lettered")
    assert (field(line, "said"), field(line, "error")) == ("the customer is gone", "LookupError: no customer 7")


def test_the_failure_record_contains_the_reason_of_a_subclass_of_reject() -> None:  # SPEC B3, F2
    def handler(message: Message) -> None:
        raise DeclinedWithReason from LookupError("no card")

    assert (failure_of(handler)["type"], failure_of(handler)["said"]) == ("LookupError", "the card was declined")


def test_the_failure_record_of_an_error_from_a_reject_contains_both() -> None:  # SPEC B3, F2
    def handler(message: Message) -> None:
        raise RuntimeError("out") from Reject("the customer is gone")

    assert (failure_of(handler)["type"], failure_of(handler)["said"]) == ("RuntimeError", "the customer is gone")


def reject_alone(message: Message) -> None:
    raise Reject("the customer is gone")


def reject_without_a_text(message: Message) -> None:
    raise Reject from LookupError("no customer 7")


def retry_to_the_end(message: Message) -> None:
    raise Retry(30) from LookupError("no customer 7")


@pytest.mark.parametrize("handler", [reject_alone, reject_without_a_text, retry_to_the_end])
def test_said_is_only_set_for_a_text_beside_an_error(handler: Any) -> None:  # SPEC F2
    assert "said" not in failure_of(handler, max_attempts=1)


def test_said_is_visible_to_a_failure_step() -> None:  # SPEC E5
    seen: list[str | None] = []

    def step(failure: Failure, next_step: Any) -> Outcome:
        seen.append(failure.said)
        return next_step(failure)

    failure_of(rejects, on_failure=[step, RetryInPlace(), DeadLetter()])
    assert seen == ["the customer is gone"]


def test_said_can_be_redacted() -> None:  # SPEC F3
    def mask(envelope: dict[str, Any]) -> dict[str, Any]:
        return {**envelope, "failure": {**envelope["failure"], "said": "****"}}

    assert failure_of(rejects, on_failure=[DeadLetter(redact=mask)])["said"] == "****"


def test_a_huge_said_is_trimmed_and_the_error_stays(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    def handler(message: Message) -> None:
        raise Reject("x" * 1_100_000) from LookupError("no customer 7")

    failure = failure_of(handler)
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


def test_the_failure_of_a_dead_letter_contains_said_and_extra(shop: Sandbox) -> None:  # SPEC F6
    [dead_letter] = shop.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert dead_letter.failure.extra == {"tenant": "acme", "lines": [1, 2.5, None]}
    assert dead_letter.failure.said == "the customer is gone"


def test_the_handler_of_a_retried_dead_letter_can_read_said_and_extra(sandbox: Sandbox) -> None:  # SPEC F6, K3
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
    with failed.opened("orders-dlq") as inspection:
        list(failed.retry(inspection, failed.select(everything=True), failed.Routes(inspection.queue)))
    sandbox.run()
    assert seen == [({"tenant": "acme", "lines": [1, 2.5, None]}, "the customer is gone")]


def test_without_enrich_there_is_no_extra(sandbox: Sandbox) -> None:  # SPEC F6
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(consumer(reject_alone), "orders")
    sandbox.send("orders", {})
    sandbox.run()
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.extra, dead_letter.failure.said) == (None, None)


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
def test_a_filter_selects_dead_letters_by_said_and_extra(shop: Sandbox, where: str, count: int) -> None:  # SPEC M2, F6
    with failed.opened("orders-dlq") as inspection:
        assert len(failed.show(inspection, failed.select(where=[where])).dead_letters) == count


def test_show_prints_said_and_extra(shop: Sandbox) -> None:  # SPEC M2, F6
    from rich.console import Console

    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = failed.show(inspection, failed.select(everything=True)).dead_letters
    console = Console(width=200)
    with console.capture() as capture:
        console.print(details(dead_letter))
    assert "verdict" in capture.get()
    assert "the customer is gone" in capture.get()
    assert '{"tenant": "acme", "lines": [1, 2.5, null]}' in capture.get()
    shown = as_json(dead_letter)["failure"]
    assert shown["said"] == "the customer is gone"
    assert shown["extra"] == {"tenant": "acme", "lines": [1, 2.5, None]}
