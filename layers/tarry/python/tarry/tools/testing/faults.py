"""Faults as data: kind, place, frequency, seeded so that a run can be repeated to the byte; the parts of a run.

sandbox.faults.add("lost_answer", operation="SendMessageBatch")            # once
sandbox.faults.add("throttle", queue="orders", times=None, chance=0.2)    # a fifth of all, until it is cleared
sandbox.faults.clear()
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Realism
from tarry.tools.simulator.sqs.errors import service_model

Part = tuple[str | int, ...]
"""The kind of a part, in the plural, and its number or name: ``("messages", 3)``, ``("faults", 0, 2)``."""
MESSAGES, FAULTS, RANDOMNESS = "messages", "faults", "random behaviors"

RANDOM_BEHAVIOR = "reorder", "partial", "duplicate"
"""The names of the random behavior of SQS in `Realism`."""


@dataclass
class Parts:
    """The parts that a run has; with ``kept``, it has only those."""

    kept: Collection[Part] | None = None
    met: list[Part] = field(default_factory=list)
    """The parts that the run had, in the order of their occurrence."""

    def keep(self, *part: str | int) -> bool:
        """Return whether the run has a part that it comes to; note that it does."""
        if self.kept is not None and part not in self.kept:
            return False
        self.met.append(part)
        return True

    def realism(self, realism: Realism) -> Realism:
        """Return the realism without the random behavior that is left out."""
        without = [each for each in RANDOM_BEHAVIOR if getattr(realism, each) and not self.keep(RANDOMNESS, each)]
        return replace(realism, **dict.fromkeys(without, False)) if without else realism


class AllParts(Parts):
    """All parts of a run whose case is not being shrunk: none is left out, and none is noted."""

    def keep(self, *part: str | int) -> bool:
        return True


REQUEST_FAULTS = (
    "throttle", "unavailable", "denied", "unreachable", "lost_answer", "partial_failure", "hang", "late",
    "garbled", "crash_before", "crash_after",
)  # fmt: skip
INVOCATION_FAULTS = ("crash", "timeout", "slow", "slow_cpu")
DELIVERY_FAULTS = ("duplicate",)
MAPPING_FAULTS = ("throttled", "held", "lost_delete")
KINDS = (*REQUEST_FAULTS, *INVOCATION_FAULTS, *DELIVERY_FAULTS, *MAPPING_FAULTS)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Of a request to SQS:

    ``throttle``, ``unavailable``, ``denied``: SQS refuses it. ``unreachable``: there is no connection.
    ``lost_answer``: SQS carries it out, but the answer does not arrive. ``hang``: the same, and the connection stays
    open until the client gives up. ``late``: it reaches SQS ``seconds`` after it was sent, perhaps after the client has
    given up.
    ``garbled``: SQS answers a send with the MD5 of another body. ``partial_failure``: SQS refuses some entries of a
    batch request.
    ``crash_before``, ``crash_after``: the process dies before the request reaches SQS, or right after.

    Of an invocation:

    ``crash``: the process dies after ``seconds`` in it; if the invocation ends before that, the fault has not struck,
    and waits for the next one. ``timeout``: it stands still until Lambda kills it. ``slow``:
    it begins ``seconds`` late (a handler that outlives its visibility). ``slow_cpu``: each time it looks at its clock,
    ``seconds`` pass, as if the code in between took them.

    Of a delivery: ``duplicate``: a message of a standard queue comes a second time, ``seconds`` after the first.

    Of the mapping: ``throttled``: Lambda refuses an invocation, and it is tried again for as long as the messages stay
    invisible. ``held``: the poller holds a batch for ``seconds`` before it invokes the function. ``lost_delete``: it
    gets no answer to its delete, which was carried out, and deletes again.
    """

    kind: str
    operation: str | None = None
    """The operation that it strikes, by name (``"SendMessageBatch"``); None: any."""
    queue: str | None = None
    """The name of the queue; None: any."""
    times: int | None = 1
    """How often; None: as often as it applies."""
    chance: float = 1.0
    """The probability that it strikes where it applies."""
    seconds: float = 0.0
    maybe: bool = False
    """Whether a run may end without it having struck; else `Sandbox.run` fails (`faults_strike`)."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}; the kinds are {', '.join(KINDS)}")
        if self.operation is not None and self.operation not in service_model().operation_names:
            raise ValueError(f"SQS has no operation {self.operation!r}; its names are such as 'SendMessageBatch'")
        if not 0 <= self.chance <= 1:
            raise ValueError(f"chance is from 0 to 1, got {self.chance!r}")

    def strikes(self, kinds: tuple[str, ...], operation: str | None, queue: str | None) -> bool:
        """Whether it may strike a request or invocation."""
        fits = self.operation in (None, operation) and self.queue in (None, queue)
        return self.kind in kinds and fits


@dataclass
class Faults:
    """The faults of a sandbox. A fault strikes ``times`` times."""

    random: Random
    history: History
    _left: dict[Fault, int | None] = field(default_factory=dict)
    _numbers: dict[Fault, int] = field(default_factory=dict)
    _taken: Counter[Fault] = field(default_factory=Counter)
    parts: Parts = field(default_factory=AllParts)
    """The occurrences of faults, and the messages of the test, which may be left out to shrink a case."""

    def add(self, kind: str | Fault, operation: str | None = None, queue: str | None = None, **more: Any) -> Fault:
        """Add a `Fault`, made or described: ``times=1, chance=1.0, seconds=0, maybe=False``.

        A run that comes to rest before the fault has struck fails, because a test must not pass without its fault;
        ``maybe=True`` allows that. With ``times=n`` and ``chance=1`` it must strike n times, else at least once.
        """
        fault = kind if isinstance(kind, Fault) else Fault(kind, operation, queue, **more)
        already = self._left.get(fault, 0)
        self._left[fault] = None if fault.times is None or already is None else already + fault.times
        number = self._numbers.setdefault(fault, len(self._numbers))
        self.history.record("fault_added", fault=number, **asdict(fault))
        return fault

    @property
    def are_left(self) -> bool:
        """Whether any fault was added, and not cleared."""
        return bool(self._left)

    def clear(self) -> None:
        """Remove all faults."""
        self._left.clear()

    def struck(self, fault: Fault, operation: str | None, queue: str | None, request_id: str | None) -> None:
        """Record that a fault has struck."""
        who = {} if request_id is None else {"request_id": request_id}
        number = self._numbers[fault]
        self.history.record("fault", fault=number, kind=fault.kind, operation=operation, queue=queue, **who)

    def give_back(self, fault: Fault) -> None:
        """Let a fault strike once more, because it did not strike; not if it was cleared in the meantime."""
        left = self._left.get(fault)
        if left is not None:
            self._left[fault] = left + 1

    def next(
        self, kinds: tuple[str, ...], queue: str | None, operation: str | None = None, request_id: str | None = None
    ) -> Fault | None:
        """Return the fault of these kinds that strikes a request, a delivery, a delete or an invocation, if any.

        A ``crash`` strikes later: call `struck` when it does, or `give_back` if the invocation has ended before.
        """
        fault = self._take(kinds, operation, queue) if self._left else None
        if fault is not None and fault.kind != "crash":
            self.struck(fault, operation, queue, request_id)
        return fault

    def _take(self, kinds: tuple[str, ...], operation: str | None, queue: str | None) -> Fault | None:
        for fault, left in self._left.items():
            if left == 0 or not fault.strikes(kinds, operation, queue):
                continue
            if fault.chance < 1 and self.random.random() >= fault.chance:
                continue
            if left is not None:
                self._left[fault] = left - 1
            self._taken[fault] += 1
            return fault if self.parts.keep(FAULTS, self._numbers[fault], self._taken[fault]) else None
        return None
