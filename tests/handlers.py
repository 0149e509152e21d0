"""A handler whose messages say by their ids what becomes of them, and the consumer of it."""

from typing import Any

from tarry import Consumer, Fixed, Message, Reject, consumer


def behave(message: Message) -> None:
    """``ok-1`` succeeds, ``retry-1`` fails, ``dead-1`` is rejected, ``exit-1`` ends the batch."""
    match message.delivery_id.partition("-")[0]:
        case "retry":
            raise ValueError("again")
        case "dead":
            raise Reject("no")
        case "exit":
            raise SystemExit


async def behave_async(message: Message) -> None:
    behave(message)


def plain() -> Consumer[Any]:
    return consumer(backoff=Fixed(60))(behave)
