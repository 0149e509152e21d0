"""The result of `tarry.tools.testing.deliver`: what became of each message of a batch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarry.failed.text import brief, coarse, shortened
from tarry.tools.testing.misuse import listed

if TYPE_CHECKING:
    from tarry.message.outcomes import State
    from tarry.tools.testing.messages import QueuedMessage

WHY_CHARACTERS = 60
"""The length of a reason in a repr: pytest shows 240 characters of it."""


@dataclass(frozen=True, repr=False)
class DeliveredMessage:
    """A message that `deliver` has received, and its state after the handler ran."""

    id: str
    """The stable id."""
    delivery_id: str
    """The id that SQS gave it."""
    body: str
    receipt_handle: str
    """The handle of this receive: `sqs.change_message_visibility` takes it, for example to make a retry visible."""
    attempt: int
    """The attempt that this delivery was, from 1. For a handler without tarry: SQS's receive count."""
    state: State
    """For a handler without tarry COMMITTED (deleted) or WAITING_RETRY (left in the queue)."""
    delay: float | None = None
    """The seconds for which tarry keeps it invisible; None is the visibility timeout of the queue."""
    why: str = ""
    """The reason and the error, if known."""

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<DeliveredMessage {self.id} {self._what}, attempt {self.attempt}: {shortened(self.body, 60)}>"

    @property
    def _what(self) -> str:
        wait = "" if self.delay is None else f"for {coarse(self.delay)}"
        why = ": ".join(filter(None, (wait, shortened(brief(self.why), WHY_CHARACTERS))))
        return f"{self.state} ({why})" if why else self.state


@dataclass(frozen=True, repr=False)
class DeliveredBatch:
    """The result of `deliver`.

    result = deliver(handler, queue_url)
    assert result.states == ["COMMITTED", "DEAD_LETTERED"]
    assert result.dead_letters[0].failure.reason == "rejected"
    """

    queue: str
    """The queue's name."""
    messages: tuple[DeliveredMessage, ...] = ()
    """The messages, in the order of the batch; empty if the queue had none to receive. The handler was not called
    then."""
    response: Any = None
    """The handler's return value, as Lambda reads it: after JSON."""
    error: BaseException | None = None
    """The exception that the handler raised, or the error of an invalid response. All messages stay in the queue, but
    for those that tarry had settled by then."""
    dead_letters: tuple[QueuedMessage, ...] = ()
    """The dead letters that tarry sent, with their failure records. Messages that SQS itself moves are not among them.
    """
    invisible: int = field(default=0, compare=False)
    """The number of messages that the queue kept invisible before the batch was received: delayed, or delivered before.
    """

    @property
    def states(self) -> list[str]:
        """The names of the states of the messages, in the order of the batch."""
        return [message.state.value for message in self.messages]

    def state(self, message_id: str) -> State:
        """Return the state of a message, by its stable id or by the id that SQS gave it.

        Raises `KeyError` for a message that is not in the batch.
        """
        for message in self.messages:
            if message_id in (message.id, message.delivery_id):
                return message.state
        raise KeyError(f"no message {message_id!r} in the batch; it has {listed(each.id for each in self.messages)}")

    def count(self, state: State | str) -> int:
        """Return the number of messages in a state."""
        return self.states.count(state)

    def __repr__(self) -> str:
        counts = Counter(message._what for message in self.messages)
        what = ", ".join(f"{number} {each}" for each, number in counts.items())
        if not self.messages:
            what = "no messages to receive" + (f", {self.invisible} invisible" if self.invisible else "")
        return f"<DeliveredBatch of {self.queue}: {what}>"
