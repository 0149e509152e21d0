"""In which order the messages of a queue that are neither hidden nor delayed are received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tarry.simulator.sqs.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tarry.simulator.sqs.message import StoredMessage
    from tarry.simulator.sqs.realism import Realism


class Order(Protocol):
    """What a queue's type makes of the messages it holds."""

    def add(self, message: StoredMessage) -> None:
        """The message has come to the queue; whether it can be received, `show` says."""

    def show(self, message: StoredMessage) -> None:
        """The message is neither hidden nor delayed any more."""

    def hide(self, message: StoredMessage) -> None:
        """The message is hidden."""

    def remove(self, message: StoredMessage) -> None:
        """The message has left the queue."""

    def receivable(self) -> Iterator[StoredMessage]:
        """Those that can be received, in turn. Whoever iterates hides, shows or removes all that he was given."""


class ByRank:
    """Standard queues: each message for itself, in the order of their sends unless `Realism` says otherwise."""

    def __init__(self, realism: Realism, random: Random) -> None:
        self._realism = realism
        self._random = random
        self._ready = Agenda()

    def add(self, message: StoredMessage) -> None:
        """It has no place before it is shown."""

    def show(self, message: StoredMessage) -> None:
        self._ready.put(message, self._realism.rank(message, self._random))

    def hide(self, message: StoredMessage) -> None:
        self._ready.discard(message)

    def remove(self, message: StoredMessage) -> None:
        self._ready.discard(message)

    def receivable(self) -> Iterator[StoredMessage]:
        while (message := self._ready.pop()) is not None:
            yield message
