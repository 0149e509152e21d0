"""Messages that can neither succeed nor leave their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.testing.lives import FAILED

if TYPE_CHECKING:
    from tarry.testing.lives import MessageCopy
    from tarry.testing.past import RecordedHistory


def stuck(past: RecordedHistory) -> str | None:
    """Say in one sentence which messages fail again and again in a queue without a dead-letter queue; else None."""
    found: dict[str, list[MessageCopy]] = {}
    for life in past.lives.values():
        if life.end is None and life.queue in past.connected and past.redrive(life.queue) is None and _fails(life):
            found.setdefault(life.queue, []).append(life)
    if not found:
        return None
    queue, lives = next(iter(found.items()))
    many = f"{len(lives)} messages of it fail" if len(lives) > 1 else f"message {lives[0].id} fails"
    return (
        f"the queue {queue!r} has no dead-letter queue, and {many} at every delivery, so the run would go on until SQS "
        "expires what fails: give the queue a dead_letter=, let the handler succeed in the end, or run(for_=...)"
    )


def _fails(life: MessageCopy) -> bool:
    """Whether its latest judged delivery failed."""
    verdicts = [each.verdict for each in life.deliveries if each.verdict is not None]
    return bool(verdicts) and verdicts[-1] in FAILED
