"""SQS, its event source mappings and Lambda in one process, in virtual time, for tests of consumers."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tarry.simulator.functions import FunctionSettings
from tarry.simulator.history import History
from tarry.simulator.lambda_invoke import Invoker, InvokeTarget
from tarry.simulator.recursion import Lineage, RecursiveLoop
from tarry.simulator.scheduler import START
from tarry.simulator.simulation import Simulation
from tarry.simulator.sqs import Realism, Sqs, SqsError
from tarry.sqs.outgoing import Entry, pack
from tarry.testing.faults import Faults
from tarry.testing.hosting import Hosting
from tarry.testing.ignored_failures import IgnoredFailures
from tarry.testing.log_recorder import recording_simulation, without_killed_processes
from tarry.testing.messages import QueuedMessage
from tarry.testing.misuse import Endless, Misuse, check_handler, listed, stuck
from tarry.testing.report import Report
from tarry.tooling.errors import UsageError
from tarry.tooling.queues import queue_name
from tarry.world import use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from tarry.delay import Delay
    from tarry.simulator.code import Code
    from tarry.simulator.invocations import FunctionHost
    from tarry.template import Template, TemplateFunction

    Environment = Mapping[str, str | Mapping[str, str]]

DAY = 86_400
DEAD_LETTER_RETENTION_SECONDS = 14 * DAY
GIVE_UP_SECONDS = 15 * DAY
"""The virtual time after which an endless run is stopped: longer than any queue keeps a message."""
MOST_EVENTS = 1_000_000
"""The most events of one run; 100,000 deliveries have half as many."""


class Sandbox:
    """A world of queues and functions in virtual time. Waits take no real time; the run depends on ``seed`` alone.

        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders")
        sandbox.send("orders", {"id": 1})
        report = sandbox.run()

    It begins at ``start`` (epoch seconds). ``realism`` lets standard queues behave as SQS may: reorder messages, return
    only some of them, deliver twice. In a ``with`` block, ``tarry.Queue`` sends to the sandbox, which is closed at the
    end; the fixture ``sandbox`` does both.
    """

    def __init__(
        self, *, seed: int = 0, realism: Realism | None = None, start: float = START, region: str = "us-east-1"
    ) -> None:
        realism = realism or Realism()
        self.seed = seed
        self._began = start
        self._simulation = Simulation(start)
        self.history = History(lambda: self._simulation.scheduler.now)
        """All events: `tarry.simulator.history`."""
        self.sqs = Sqs(
            lambda: self._simulation.scheduler.now,
            self._random("sqs"),
            self.history,
            region=region,
            realism=realism,
        )
        """The model of SQS itself."""
        self.faults = Faults(self._random("faults"), self.history)
        """The faults that strike: `tarry.testing.faults`."""
        lineage = Lineage(self.history) if realism.recursion_is_stopped else None
        self._hosting = Hosting(self._simulation, self.sqs, self.faults, self.history, seed, lineage=lineage)
        self.world = self._hosting.world()
        """The world of the test's own code."""
        self._simulation.scheduler.around = partial(recording_simulation, self.history, self._simulation.actors)
        self._checked = 0
        self._warned = 0
        self._ignored = IgnoredFailures()
        self._closed = False
        self._until_closed = ExitStack()
        self._uses_moto = False
        self._names: dict[str, str] = {}
        self._code: dict[str, Code] = {}

    @classmethod
    def from_template(
        cls,
        template: str | Path | Template,
        *,
        parameters: Mapping[str, str] | None = None,
        environment: Environment | None = None,
        resources: bool = False,
        seed: int = 0,
        realism: Realism | None = None,
        start: float = START,
        region: str = "us-east-1",
    ) -> Self:
        """Return a sandbox with the resources of a SAM template: see `add_template`. A `Template` has a region.

        Use it in a ``with`` block, or close it: with ``resources=True``, it mocks AWS until then.
        """
        sandbox = cls(seed=seed, realism=realism, start=start, region=getattr(template, "region", region))
        try:
            sandbox.add_template(template, parameters=parameters, environment=environment, resources=resources)
        except BaseException:
            sandbox.close()
            raise
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
        """Make a queue and return its URL; make its dead-letter queue too, if there is none yet.

        Times are in seconds and sizes in bytes, within SQS's limits. A name that ends in ``.fifo`` implies ``fifo``.

        Raises `ValueError` for settings that SQS refuses.
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
                self.queue(dead_letter, retention=DEAD_LETTER_RETENTION_SECONDS)
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
        """Let a queue feed a handler, as an event source mapping with ``ReportBatchItemFailures`` does.

        ``handler`` is a Lambda handler: a consumer, or any function of an event and a context. A handler with several
        queues is one function; ``timeout`` is the function's, in seconds. ``window`` is in seconds too. ``filters`` are
        the mapping's: ``{"body": {"kind": ["order"]}}``. ``recursive_loop`` is the function's ``RecursiveLoop``: unless
        it is ``"Allow"``, Lambda refuses a message that 16 sends of the function in a row led to.

        Raises `ValueError` for an unknown queue, and for settings that Lambda refuses, such as a visibility timeout
        below the function's timeout; `TypeError` for an object that is not a handler.
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
        resources: bool = False,
    ) -> None:
        """Add the queues of a SAM template, its functions that SQS feeds, and their event source mappings.

        ``parameters`` are the template's. ``environment`` sets variables of all functions, or of one by its name or
        logical id: ``{"STAGE": "test", "OrdersFunction": {"TABLE": "orders"}}``. Other variables have
        the template's values: queues their URLs, tables and buckets their names.

        ``resources=True`` also makes the template's tables, buckets, topics, keys, parameters, secrets, event buses and
        streams, in moto; what topics, buckets and event buses send to queues arrives in the queues of the sandbox.
        Until the sandbox is closed, boto3 uses moto in this process, except for SQS: the SQS clients that it makes are
        those of the sandbox. ``AWS_DEFAULT_REGION`` is the region of the template.

        A function's code is imported when it is first needed; `run` raises `CodeError` if that cannot be done.

        Raises `TemplateError` for a template that cannot be read, for a resource that cannot be made, and for
        ``resources=True`` without moto.
        """
        from tarry.template import TemplateError, read_template
        from tarry.template.model import Template
        from tarry.testing.assembly import assemble

        if not isinstance(template, Template):
            template = read_template(template, parameters, self.sqs.region)
        if resources and not self._uses_moto:
            from tarry.testing.resources import moto_in_process

            self._until_closed.enter_context(
                moto_in_process(template.region, self.client, self.sqs.call, lambda: self.now)
            )
            self._uses_moto = True
        try:
            moto = self._until_closed if resources else None
            built = assemble(self.sqs, self._hosting, template, environment or {}, moto)
        except UsageError as error:
            raise TemplateError(str(error)) from error
        self._names |= built.queues
        self._code |= built.code

    def module(self, function: str) -> ModuleType:
        """Return the module of a template's function, by its name or logical id, for a test that patches it.

        Raises `CodeError` if it cannot be imported.
        """
        if function not in self._code:
            raise ValueError(f"no function {function!r} came from a template; there are {listed(self._code)}")
        return self._code[function].load()

    def client(self) -> Any:
        """Return an SQS client with boto3's methods, for all other operations. Its requests take virtual time."""
        return self.world.client_factory() if self.world.client_factory else None

    # the actions of a test

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
        """Send a message as `tarry.Queue.send` does, but at once and without faults; return its id.

        Raises the errors of that method, and `ValueError` for an unknown queue.
        """
        name = self._named(queue)
        outgoing = pack(
            Entry(body, delay, attributes, group_id, deduplication_id), self.world, fifo=name.endswith(".fifo")
        )
        try:
            answer = self.sqs.call("SendMessage", {"QueueUrl": self.sqs.url(name), **outgoing.parameters})
        except SqsError as error:
            raise ValueError(f"SQS refuses the message to {name!r}: {error.message}") from error
        return outgoing.stable_id or str(answer["MessageId"])

    def redrive(self, dead_letters: str, *, to: str | None = None) -> None:
        """Move all visible messages of a dead-letter queue back, by SQS's own ``StartMessageMoveTask``.

        ``to`` may be omitted if it is the dead-letter queue of one queue alone.

        Raises `ValueError` for an unknown queue, and if the target is not clear.
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
        """Run until nothing is left to do, until a condition holds, or for ``for_`` virtual seconds.

        With a condition, ``for_`` is the longest time to wait for it.

        Raises `AssertionError`, with the message's timeline, if a rule is broken (`tarry.testing.checkers`): a message
        was lost, duplicated without a cause, or back before its delay was over, or a fault never struck. Also if
        messages fail forever in a queue without a dead-letter queue. ``check=False`` leaves that to the caller, who has
        the report. Raises `SimulationError` for a handler that takes real time, and for a run that seems endless;
        `CodeError` for a template's function that cannot be imported.

        Warns if a handler returns failures that its mapping ignores, and of filters that AWS may treat differently.
        """
        if for_ is not None and not 0 <= for_ < math.inf:
            raise ValueError(f"for_ is a number of seconds from 0, got {for_!r}")
        if self._simulation.scheduler.running:
            self._refuse_to_run()
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        self._play(until, for_)
        self.sqs.catch_up()
        report = self.report()
        if check and self._checked < len(report.events):
            self._checked = len(report.events)
            report.check()
        if check and until is None and for_ is None and not report.settled and (text := stuck(report.history)):
            raise AssertionError(text)
        if check:
            self._warn()
        return report

    def advance(self, seconds: float) -> Report:
        """Run for ``seconds`` of virtual time. Raises the errors of `run`."""
        return self.run(for_=seconds)

    def sleep(self, seconds: float) -> None:
        """Take virtual time, as ``time.sleep`` takes real time: for handlers and fake services."""
        if self._simulation.scheduler.running:
            self._simulation.clock.sleep(seconds)
        else:
            self.advance(seconds)

    def report(self) -> Report:
        """Return the report of everything until now."""
        scheduler = self._simulation.scheduler
        settled = math.isinf(scheduler.next_at())
        return Report(tuple(self.history.events), self._began, scheduler.now, settled, self.seed)

    @property
    def now(self) -> float:
        """The virtual time, in epoch seconds."""
        return self._simulation.scheduler.now

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the sandbox was made."""
        return self.now - self._began

    def messages(self, queue: str) -> list[QueuedMessage]:
        """Return the messages in a queue, invisible ones too, in the order of sending. Costs no receive.

        Raises `ValueError` for an unknown queue.
        """
        name = self._named(queue)
        return [QueuedMessage(stored, name, self.now) for stored in self.sqs.peek(name)]

    def close(self) -> None:
        """End all handlers that still run. The fixture and a ``with`` block call it."""
        self._closed = True
        with self._until_closed, without_killed_processes(self._simulation.actors):
            self._hosting.close()
            self._simulation.close()

    # inside

    def _host(self, function: TemplateFunction, variables: Mapping[str, str]) -> FunctionHost:
        """Return a function of a template, for code that invokes it: that of its queue, or a new one."""
        from tarry.testing.assembly import code_of, settings_of

        if function.name not in self._code:
            self._code[function.name] = code_of(function, variables)
        code = self._code[function.name]
        return self._hosting.function_of(code.handler, settings_of(function), code.running)

    def _invoker(self, find: Callable[[str], InvokeTarget], note: Callable[[str], None]) -> Invoker:
        """Return an invoker of functions, for code that invokes them."""
        call = partial(self.sqs.called_by, "http")
        return Invoker(self._simulation.scheduler, find, call, self.world.new_id, note)

    def _random(self, of: str) -> Random:
        return Random(f"{self.seed} {of}")

    def _named(self, queue: str) -> str:
        """Return the name of a queue, given its name or its logical id in the template."""
        name = self._names.get(queue, queue)
        if name not in self.sqs.queues():
            raise ValueError(f"the sandbox has no queue {queue!r}; it has {listed(self.sqs.queues())}")
        return name

    def _play(self, until: Callable[[], bool] | None, seconds: float | None) -> None:
        scheduler, events = self._simulation.scheduler, self.history.events
        most, ends_at = len(events) + MOST_EVENTS, scheduler.now + (GIVE_UP_SECONDS if seconds is None else seconds)
        scheduler.run(lambda: len(events) > most or (until is not None and until()), ends_at)
        if len(events) > most:
            raise Endless(f"more than {MOST_EVENTS:,} events in one run: does a function send to itself, on and on?")
        if seconds is not None and until is None:
            scheduler.run(ends_at)  # nothing is left to happen by then, and it is that time

    def _warn(self) -> None:
        """Warn about mappings that AWS may treat differently, and about failures that mappings ignore."""
        events, self._warned = self.history.events[self._warned :], len(self.history.events)
        for event in events:
            match event.what:
                case "connected":
                    for text in event.fields["warnings"]:
                        warnings.warn(f"the mapping of {event.fields['queue']}: {text}", stacklevel=3)
                case "answered" if text := self._ignored.text(event.fields):
                    warnings.warn(text, stacklevel=3)

    def _refuse_to_run(self) -> NoReturn:
        """Only a test lets time pass. In a handler an ordinary error would be one more failure to retry."""
        misuse = Misuse("a handler calls run() or advance() of the sandbox it runs in: let it call sandbox.sleep()")
        if self._simulation.actors.running is not None:
            self._simulation.actors.fail(misuse)
        raise misuse
