"""A handler that succeeds or fails according to the message id, and its consumer."""

from typing import Any

from tarry import Consumer, Fixed, Message, Reject, consumer


def behave(message: Message) -> None:
    """Succeed on ``ok-1``, fail on ``retry-1``, reject ``dead-1``, end the batch on ``exit-1``."""
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
