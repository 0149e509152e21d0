"""SQS, its event source mappings and Lambda in one process, in virtual time, for tests of consumers."""

from __future__ import annotations

import json
import math
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tarry.simulator.functions import FunctionSettings
from tarry.simulator.history import History
from tarry.simulator.recursion import Lineage, RecursiveLoop
from tarry.simulator.sqs import Realism, Sqs, SqsError
from tarry.simulator.stage import Stage
from tarry.simulator.timeline import START
from tarry.sqs.outgoing import Entry, pack
from tarry.testing.faults import Faults
from tarry.testing.hosting import Hosting
from tarry.testing.listening import listening, without_the_dead
from tarry.testing.messages import Letter
from tarry.testing.misuse import Endless, Misuse, check_handler, listed, stuck
from tarry.testing.report import Report
from tarry.tooling.queues import queue_name
from tarry.world import use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from tarry.delay import Delay
    from tarry.simulator.code import Code
    from tarry.template import Template

    Environment = Mapping[str, str | Mapping[str, str]]

DAY = 86_400
LETTER_RETENTION_SECONDS = 14 * DAY
GIVE_UP_SECONDS = 15 * DAY
"""Virtual time after which a run ends that never comes to rest: longer than any queue keeps a message."""
MOST_EVENTS = 1_000_000
"""What may happen in one run: 100,000 deliveries are half of it."""


class Sandbox:
    """A world of queues and functions in virtual time. Waits take no real time; what happens depends on ``seed`` alone.

        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders")
        sandbox.send("orders", {"id": 1})
        report = sandbox.run()

    It begins at ``start`` (epoch seconds). ``realism`` lets standard queues do what SQS may do: reorder, return a part
    of what is there, deliver twice. In a ``with`` block it is where the block's own ``tarry.Queue`` sends to, and it is
    closed in the end; the fixture ``sandbox`` does both.
    """

    def __init__(
        self, *, seed: int = 0, realism: Realism | None = None, start: float = START, region: str = "us-east-1"
    ) -> None:
        realism = realism or Realism()
        self.seed = seed
        self._began = start
        self._stage = Stage(start)
        self.history = History(lambda: self._stage.timeline.now)
        """All that happened: `tarry.simulator.history`."""
        self.sqs = Sqs(
            lambda: self._stage.timeline.now,
            self._random("sqs"),
            self.history,
            region=region,
            realism=realism,
        )
        """The model of SQS itself."""
        self.faults = Faults(self._random("faults"), self.history)
        """What goes wrong: `tarry.testing.faults`."""
        lineage = Lineage(self.history) if realism.recursion_is_stopped else None
        self._hosting = Hosting(self._stage, self.sqs, self.faults, self.history, seed, lineage=lineage)
        self.world = self._hosting.world()
        """The world of what the test itself does."""
        self._stage.timeline.around = partial(listening, self.history, self._stage.actors)
        self._checked = 0
        self._closed = False
        self._names: dict[str, str] = {}
        self._code: dict[str, Code] = {}

    @classmethod
    def from_template(
        cls,
        template: str | Path | Template,
        *,
        parameters: Mapping[str, str] | None = None,
        environment: Environment | None = None,
        seed: int = 0,
        realism: Realism | None = None,
        start: float = START,
        region: str = "us-east-1",
    ) -> Self:
        """A sandbox with what a SAM template says: see `add_template`. One that was read before knows its region."""
        sandbox = cls(seed=seed, realism=realism, start=start, region=getattr(template, "region", region))
        sandbox.add_template(template, parameters=parameters, environment=environment)
        return sandbox

    def __enter__(self) -> Self:
        self._use = use(self.world)
        self._use.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._use.__exit__()
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox seed={self.seed}: {', '.join(self.sqs.queues()) or 'no queues'}, after {self.elapsed:.1f} s>"

    # building

    def queue(
        self,
        name: str,
        *,
        fifo: bool = False,
        dead_letter: str | None = None,
        max_receive_count: int = 15,
        visibility_timeout: int = 60,
        retention: int = 4 * DAY,
        delay: int = 0,
        maximum_message_size: int = 1_048_576,
    ) -> str:
        """Makes a queue; its URL. A dead-letter queue that is not there yet is made too.

        Seconds and bytes, within SQS's limits. ``fifo`` goes without saying for a name that ends in ``.fifo``.

        Raises `ValueError` for what SQS refuses.
        """
        attributes = {
            "VisibilityTimeout": str(visibility_timeout),
            "MessageRetentionPeriod": str(retention),
            "DelaySeconds": str(delay),
            "MaximumMessageSize": str(maximum_message_size),
        }
        if fifo and not name.endswith(".fifo"):
            raise ValueError(f"SQS wants the name of a FIFO queue to end in .fifo, got {name!r}")
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if dead_letter is not None:
            if dead_letter not in self.sqs.queues():
                self.queue(dead_letter, retention=LETTER_RETENTION_SECONDS)
            policy = {"deadLetterTargetArn": self.sqs.arn(dead_letter), "maxReceiveCount": max_receive_count}
            attributes["RedrivePolicy"] = json.dumps(policy)
        try:
            return str(self.sqs.call("CreateQueue", {"QueueName": name, "Attributes": attributes})["QueueUrl"])
        except SqsError as error:
            raise ValueError(f"SQS refuses the queue {name!r}: {error.message}") from error

    def connect(  # noqa: PLR0913 each is a setting of the mapping or the function
        self,
        handler: Callable[[Any, Any], Any],
        queue: str,
        *,
        batch_size: int = 10,
        window: int = 0,
        timeout: float = 30,
        max_concurrency: int | None = None,
        reports_failures: bool = True,
        filters: Sequence[str | Mapping[str, Any]] = (),
        recursive_loop: RecursiveLoop = "Terminate",
    ) -> None:
        """Lets a queue feed a handler, as an event source mapping with ``ReportBatchItemFailures`` does.

        ``handler`` is a Lambda handler: a consumer, or any function of an event and a context. A handler with several
        queues is one function; ``timeout`` is the function's, in seconds. ``window`` is in seconds too. ``filters`` are
        the mapping's: ``{"body": {"kind": ["order"]}}``. ``recursive_loop`` is the function's ``RecursiveLoop``: unless
        it is ``"Allow"``, Lambda refuses a message that 16 sends of the function in a row led to.

        Raises `ValueError` for an unknown queue, and for what Lambda refuses, such as a visibility timeout below the
        function's; `TypeError` for what is no handler.
        """
        check_handler(handler)
        self._hosting.connect(
            handler,
            self._named(queue),
            FunctionSettings(
                getattr(handler, "__name__", "function"), timeout_seconds=timeout, recursive_loop=recursive_loop
            ),
            batch_size=batch_size,
            window_seconds=window,
            maximum_concurrency=max_concurrency,
            reports_failures=reports_failures,
            filters=filters,
        )

    def add_template(
        self,
        template: str | Path | Template,
        *,
        parameters: Mapping[str, str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Adds what a SAM template says: its queues, and its functions that SQS feeds, as it feeds them.

        ``parameters`` are the template's. ``environment`` sets variables of all functions, or of one by its name or
        logical id: ``{"STAGE": "test", "OrdersFunction": {"TABLE": "orders"}}``. What it does not set is as in the
        template: queues by their URLs, tables and buckets by their names. Tables and buckets are not made.

        A function's code is imported when it is first needed; `run` raises `CodeError` if that cannot be done.

        Raises `TemplateError` for a template that cannot be read.
        """
        from tarry.testing.assembly import assemble

        built = assemble(self.sqs, self._hosting, template, parameters or {}, environment or {})
        self._names |= built.queues
        self._code |= built.code

    def module(self, function: str) -> ModuleType:
        """The module of a template's function, by its name or logical id: for a test that replaces things in it.

        Raises `CodeError` if it cannot be imported.
        """
        if function not in self._code:
            raise ValueError(f"no function {function!r} came from a template; there are {listed(self._code)}")
        return self._code[function].load()

    def client(self) -> Any:
        """An SQS client with boto3's methods, for what the sandbox has no word for. Its requests take virtual time."""
        return self.world.client_factory() if self.world.client_factory else None

    # what a test does

    def send(
        self,
        queue: str,
        body: Any,
        *,
        delay: Delay | None = None,
        group_id: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """Sends a message as `tarry.Queue.send` does, but at once and whatever the faults; its id.

        Raises what that raises, `ValueError` for an unknown queue too.
        """
        name = self._named(queue)
        parcel = pack(
            Entry(body, delay, attributes, group_id, deduplication_id), self.world, fifo=name.endswith(".fifo")
        )
        try:
            answer = self.sqs.call("SendMessage", {"QueueUrl": self.sqs.url(name), **parcel.parameters})
        except SqsError as error:
            raise ValueError(f"SQS refuses the message to {name!r}: {error.message}") from error
        return parcel.stable_id or str(answer["MessageId"])

    def redrive(self, dead_letters: str, *, to: str | None = None) -> None:
        """Moves all that can be received in a dead-letter queue back, by SQS's own ``StartMessageMoveTask``.

        ``to`` may be left out where it is the dead-letter queue of one queue alone.

        Raises `ValueError` for an unknown queue, and if it is not clear where to.
        """
        name = self._named(dead_letters)
        sources = self.sqs.call("ListDeadLetterSourceQueues", {"QueueUrl": self.sqs.url(name)})["queueUrls"]
        if to is None and len(sources) != 1:
            found = ", ".join(queue_name(url) for url in sources) or "none"
            raise ValueError(f"say where to (to=...): the queues whose dead-letter queue {name!r} is are {found}")
        target = queue_name(sources[0]) if to is None else self._named(to)
        arns = {"SourceArn": self.sqs.arn(name), "DestinationArn": self.sqs.arn(target)}
        self.sqs.call("StartMessageMoveTask", arns)

    def run(self, until: Callable[[], bool] | None = None, *, for_: float | None = None, check: bool = True) -> Report:
        """Lets everything happen: until nothing is left to, until a condition holds, or for so many virtual seconds.

        With a condition, ``for_`` is the longest that it is waited for.

        Raises `AssertionError`, with the message's timeline, where something happened that must never: a message lost,
        doubled without a cause, back before its delay was over (`tarry.testing.checkers`), where a fault never struck,
        or where messages fail for ever in a queue without a dead-letter queue; ``check=False`` leaves that to the
        caller, who has the report. Raises `SimulationError` for a handler that takes real time, and for what
        seems to go on for ever; `CodeError` for a template's function that cannot be imported.
        """
        if for_ is not None and not 0 <= for_ < math.inf:
            raise ValueError(f"for_ is a number of seconds from 0, got {for_!r}")
        if self._stage.timeline.running:
            self._refuse_to_run()
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        self._play(until, for_)
        self.sqs.settle_time()
        report = self.report()
        if check and self._checked < len(report.events):
            self._checked = len(report.events)
            report.check()
        if check and until is None and for_ is None and not report.settled and (text := stuck(report.history)):
            raise AssertionError(text)
        return report

    def advance(self, seconds: float) -> Report:
        """Lets so many virtual seconds pass, with all that happens in them. Raises what `run` raises."""
        return self.run(for_=seconds)

    def sleep(self, seconds: float) -> None:
        """Takes virtual time, as ``time.sleep`` takes real time: for handlers, and what stands in for a service."""
        if self._stage.timeline.running:
            self._stage.clock.sleep(seconds)
        else:
            self.advance(seconds)

    def report(self) -> Report:
        """What has happened until now."""
        timeline = self._stage.timeline
        settled = math.isinf(timeline.next_at())
        return Report(tuple(self.history.events), self._began, timeline.now, settled, self.seed)

    @property
    def now(self) -> float:
        """The virtual time, in epoch seconds."""
        return self._stage.timeline.now

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the sandbox was made."""
        return self.now - self._began

    def messages(self, queue: str) -> list[Letter]:
        """What is in a queue now, hidden or not, in the order in which it came. Costs no receive.

        Raises `ValueError` for an unknown queue.
        """
        name = self._named(queue)
        return [Letter(stored, name, self.now) for stored in self.sqs.peek(name)]

    def close(self) -> None:
        """Ends all handlers that still run. The fixture does it, and a ``with`` block."""
        self._closed = True
        with without_the_dead(self._stage.actors):
            self._hosting.close()
            self._stage.close()

    # inside

    def _random(self, of: str) -> Random:
        return Random(f"{self.seed} {of}")

    def _named(self, queue: str) -> str:
        """The queue's name, for its name or its logical id in the template."""
        name = self._names.get(queue, queue)
        if name not in self.sqs.queues():
            raise ValueError(f"the sandbox has no queue {queue!r}; it has {listed(self.sqs.queues())}")
        return name

    def _play(self, until: Callable[[], bool] | None, seconds: float | None) -> None:
        timeline, events = self._stage.timeline, self.history.events
        most, ends_at = len(events) + MOST_EVENTS, timeline.now + (GIVE_UP_SECONDS if seconds is None else seconds)
        timeline.run(lambda: len(events) > most or (until is not None and until()), ends_at)
        if len(events) > most:
            raise Endless(f"more than {MOST_EVENTS:,} events in one run: does a function send to itself, on and on?")
        if seconds is not None and until is None:
            timeline.run(ends_at)  # nothing is left to happen by then, and it is that time

    def _refuse_to_run(self) -> NoReturn:
        """Only a test lets time pass. In a handler an ordinary error would be one more failure to retry."""
        misuse = Misuse("a handler calls run() or advance() of the sandbox it runs in: let it call sandbox.sleep()")
        if self._stage.actors.running is not None:
            self._stage.actors.fail(misuse)
        raise misuse
