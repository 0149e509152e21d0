"""Fields of the failure record beside the error: the text of a verdict, and the dict that ``enrich`` adds."""

from typing import Any

import pytest
from rich.console import Console

from tarry import DeadLetter, Failure, Message, Outcome, Reject, Retry, RetryInPlace, consumer, failed
from tarry.failed.dead_letters import as_json
from tarry.testing import Sandbox
from tarry.tools.cli.failed.rendering import details
from tests.loglines import Caplog, field, lines
from tests.settled import settle

VERDICT = "the customer is gone"
CAUSE = LookupError("no customer 7")


class DeclinedWithReason(Reject):
    reason = "the card was declined"


def failure_of(handler: Any, **settings: Any) -> dict[str, Any]:
    """Return the failure record of a dead letter of the handler."""
    [envelope] = settle(consumer(**settings)(handler))[1].envelopes()
    failure: dict[str, Any] = envelope["failure"]
    return failure


def raises(error: BaseException, cause: BaseException | None = None) -> Any:
    def handler(message: Message) -> None:
        raise error from cause

    return handler


rejects = raises(Reject(VERDICT), CAUSE)


def test_the_failure_record_names_an_error_of_tarry_without_its_file() -> None:  # SPEC F2
    generates = failure_of(lambda message: (each for each in [message]), max_attempts=1)
    assert generates["type"] == "tarry.HandlerNeverRan"


@pytest.mark.parametrize(
    ("handler", "type", "said"),
    [
        (rejects, "LookupError", VERDICT),
        (raises(DeclinedWithReason(), CAUSE), "LookupError", "the card was declined"),
        (raises(RuntimeError("out"), Reject(VERDICT)), "RuntimeError", VERDICT),
        (raises(Reject(VERDICT)), None, None),
        (raises(Reject(), CAUSE), "LookupError", None),
        (raises(Retry(30), CAUSE), "LookupError", None),
        (raises(Reject("x" * 1_100_000), CAUSE), "LookupError", "x" * 1_000),
    ],
    ids=["a reject from an error", "a subclass", "an error from a reject", "no error", "no text", "a retry", "huge"],
)
def test_the_failure_record_of_a_verdict_beside_an_error_contains_both(
    handler: Any, type: str | None, said: str | None
) -> None:  # SPEC B3, F2, F3
    failure = failure_of(handler, max_attempts=1)
    assert (failure.get("said"), "said" in failure) == (said, said is not None)
    assert type is None or failure["type"] == type
    assert type != "LookupError" or failure["message"] == "no customer 7"


def test_said_is_visible_to_a_failure_step_and_in_the_log_and_can_be_redacted(caplog: Caplog) -> None:
    # SPEC E5, F2, F3
    seen: list[str | None] = []

    def step(failure: Failure, next_step: Any) -> Outcome:
        seen.append(failure.said)
        return next_step(failure)  # type: ignore[no-any-return]

    def mask(envelope: dict[str, Any]) -> dict[str, Any]:
        return {**envelope, "failure": {**envelope["failure"], "said": "****"}}

    failure = failure_of(rejects, on_failure=[step, RetryInPlace(), DeadLetter(redact=mask)])
    assert (seen, failure["said"], failure["reason"]) == ([VERDICT], "****", "rejected")
    [line] = lines(caplog, "dead_lettered")
    assert (field(line, "said"), field(line, "error")) == (VERDICT, "LookupError: no customer 7")


def enriched(failure: Failure) -> dict[str, Any]:
    return {"queue": failure.message.queue, "lines": [1, 2.5, None]}


EXTRA = {"queue": "orders", "lines": [1, 2.5, None]}
Seen = list[tuple[Any, Any]]


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def shop(sandbox: Sandbox, seen: Seen) -> Sandbox:
    """A sandbox with a dead letter whose handler shows what it sees of its failure when it is retried."""

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
    return sandbox


def test_said_and_extra_are_in_the_dead_letter_and_its_handler_can_read_them_when_it_is_retried(
    shop: Sandbox, seen: Seen
) -> None:  # SPEC F6, K3
    [dead_letter] = shop.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.extra, dead_letter.failure.said) == (EXTRA, VERDICT)
    with failed.opened("orders-dlq") as inspection:
        list(failed.retry(inspection, failed.select(everything=True), failed.Routes(inspection.queue)))
    shop.run()
    assert seen == [(EXTRA, VERDICT)]


def test_without_enrich_there_is_no_extra() -> None:  # SPEC F6
    [envelope] = settle(consumer(raises(Reject(VERDICT))))[1].envelopes()
    assert "extra" not in envelope


def test_a_filter_selects_dead_letters_by_said_and_extra_and_both_are_shown(shop: Sandbox) -> None:  # SPEC M2, F6
    counts = {
        "extra.queue = orders": 1,
        "extra.queue = other": 0,
        "extra.lines[0] = 1": 1,
        "said ~ customer is": 1,
        f"said = '{VERDICT}'": 0,
        f'said = "{VERDICT}"': 1,
    }
    for where, count in counts.items():
        with failed.opened("orders-dlq") as inspection:
            assert len(failed.show(inspection, failed.select(where=[where])).dead_letters) == count
    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = failed.show(inspection, failed.select(everything=True)).dead_letters
    console = Console(width=200)
    with console.capture() as capture:
        console.print(details(dead_letter))
    assert all(text in capture.get() for text in ("verdict", VERDICT, '{"queue": "orders", "lines": [1, 2.5, null]}'))
    shown = as_json(dead_letter)["failure"]
    assert (shown["said"], shown["extra"]) == (VERDICT, EXTRA)
