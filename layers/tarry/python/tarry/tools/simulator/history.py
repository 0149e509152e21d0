"""The history of a run: an append-only list of events, read by checkers and timelines, and a bus for listeners."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Self


class HistoryEvent(tuple[Any, ...]):
    """An event of a run. It is never changed.

    ``at`` is its time in epoch seconds, ``what`` its name (``sent``, ``received``, ``deleted``, ``invoked`` ...), and
    ``fields`` are its details, such as ``queue`` (a name) and ``delivery_id`` (SQS's message id).
    """

    # A message has seven events: each is one tuple, of the time, the name, the shared names of the fields, and values.
    __slots__ = ()

    def __new__(cls, at: float, what: str, fields: Mapping[str, Any]) -> Self:
        names = tuple(fields)
        return super().__new__(cls, (at, what, _shared.setdefault(names, names), *fields.values()))

    at: float = property(itemgetter(0))  # type: ignore[assignment]
    what: str = property(itemgetter(1))  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"HistoryEvent(at={self.at!r}, what={self.what!r}, fields={self.fields!r})"

    @property
    def fields(self) -> dict[str, Any]:
        """A new dict at each access."""
        return dict(zip(self[2], self[3:], strict=True))


_made: Callable[..., Any] = tuple.__new__
_shared: dict[tuple[str, ...], tuple[str, ...]] = {}


class History:
    """The events of a run, in the order in which they were recorded. Their times never decrease.

    With ``keep=False`` the events go to the listeners only, so that a run of days does not fill the memory.
    """

    def __init__(self, now: Callable[[], float], *, keep: bool = True) -> None:
        self.now = now
        """Returns the time, in epoch seconds."""
        self.keeps = keep
        """Whether the events are kept."""
        self._listeners: list[Callable[[HistoryEvent], None]] = []
        self._listeners_to: dict[str, list[Callable[[HistoryEvent], None]]] = {}
        self.events: list[HistoryEvent] = []
        """Empty with ``keep=False``."""
        self.recorded = 0
        """The number of events until now, kept or not."""
        self.by: str | None = None
        """The source of the current events, recorded with each: the request id of an invocation, ``mapping``, ``http``
        for a client over HTTP, None for a test."""
        self.invocation: str | None = None
        """The request id of the invocation that makes the current request over HTTP, if known; recorded with each
        event."""

    def listen(self, callback: Callable[[HistoryEvent], None], *what: str) -> None:
        """Call ``callback`` with each event while it is recorded, or with the events of these names only.

        The callback must be quick and must not change the simulation; it can schedule an action to do that later.
        """
        if not what:
            self._listeners.append(callback)
        for name in what:
            self._listeners_to.setdefault(name, []).append(callback)

    def record(self, what: str, /, **fields: Any) -> None:
        """Add an event at the current time."""
        self.add(what, fields)

    def add(self, what: str, fields: Mapping[str, Any]) -> None:
        """Add an event as `record` does, with its fields as a dict."""
        if self.by is not None:
            fields = {**fields, "by": self.by}
        if self.invocation is not None:
            fields = {**fields, "invocation": self.invocation}
        names = tuple(fields)
        event = _made(HistoryEvent, (self.now(), what, _shared.setdefault(names, names), *fields.values()))
        self.recorded += 1
        if self.keeps:
            self.events.append(event)
        for notify in self._listeners:
            notify(event)
        if what in self._listeners_to:
            for notify in self._listeners_to[what]:
                notify(event)
