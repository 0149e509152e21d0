"""SQS, its event source mappings and Lambda in one process, in virtual time, for tests of consumers."""

from __future__ import annotations

import gc
import json
import math
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tarry.failed.queue_names import queue_name
from tarry.failed.usage import UsageError
from tarry.settle.planner import RECURSIVE_LOOP_VARIABLE
from tarry.sqs.outgoing import Entry, pack
from tarry.tools.simulator.batch_errors import SeenKeys
from tarry.tools.simulator.code import environment as with_variables
from tarry.tools.simulator.history import History
from tarry.tools.simulator.lambda_invoke import Invoker, InvokeTarget
from tarry.tools.simulator.recursion import Lineage, RecursiveLoop
from tarry.tools.simulator.scheduler import START
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.simulator.sqs import Realism, Sqs, SqsError
from tarry.tools.template import Template, TemplateError, TemplateFunction, TemplateMapping, read_template
from tarry.tools.testing.deliveries import FAILED
from tarry.tools.testing.faults import MESSAGES, Faults
from tarry.tools.testing.hosting import Hosting
from tarry.tools.testing.log_recorder import ignored_failures, recording_simulation, without_killed_processes
from tarry.tools.testing.messages import QueuedMessage
from tarry.tools.testing.misuse import Endless, Misuse, check_handler, listed
from tarry.tools.testing.report import NOT_KEPT, Report
from tarry.world import use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from tarry.support.values import Delay
    from tarry.tools.simulator.invocations import FunctionHost
    from tarry.tools.testing.deliveries import MessageCopy
    from tarry.tools.testing.hosting import Environment
    from tarry.tools.testing.recorded_history import RecordedHistory

OBJECTS_PER_COLLECTION = 2_000_000
"""Some 200 MB, if all of them are garbage. Python's own number is 700. The history of 20,000 messages has fewer."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Let the garbage collector start less often until the context ends.

    A sandbox keeps its whole history, so each collection looks through more objects that all stay alive: a fifth of the
    time of a run. Cycles are still collected, and `gc.collect()` works as always. A collector that is off stays off.
    """
    before = gc.get_threshold()
    rare = (max(before[0], OBJECTS_PER_COLLECTION) if before[0] else 0, *before[1:])
    gc.set_threshold(*rare)
    try:
        yield
    finally:
        if gc.get_threshold() == rare:  # the test has not set its own
            gc.set_threshold(*before)


GIVE_UP_SECONDS = 15 * 86_400
"""The virtual time after which an endless run is stopped: longer than any queue keeps a message."""
MOST_EVENTS = 1_000_000
"""The most events of one run that keeps its history; 100,000 deliveries have half as many."""
OF_THE_TEST = 3
"""The place of the test's code in the stack of `Sandbox._warn`, for the warnings: above `Sandbox.run`."""
DAY = 86_400
DEAD_LETTER_RETENTION_SECONDS = 14 * DAY


class Sandbox:
    """A world of queues and functions in virtual time. Waits take no real time; the run depends on ``seed`` alone.

        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders")
        sandbox.send("orders", {"id": 1})
        report = sandbox.run()

    It begins at ``start`` (epoch seconds). ``realism`` lets standard queues behave as SQS may: reorder messages, return
    only some of them, deliver twice. In a ``with`` block, ``tarry.Queue`` sends to the sandbox, which is closed at the
    end; the fixture ``sandbox`` does both.

    ``keep_history=False`` is for runs of millions of messages: finished messages take no memory. Such a sandbox cannot
    check its rules, so `run` needs ``check=False``, and its reports have no messages.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        realism: Realism | None = None,
        start: float = START,
        region: str = "us-east-1",
        keep_history: bool = True,
    ) -> None:
        realism = realism or Realism()
        self.seed = seed
        self._began = start
        self._simulation = Simulation(start)
        scheduler = self._simulation.scheduler
        self.history = History(lambda: scheduler.now, keep=keep_history)
        """All events: `tarry.tools.simulator.history`."""
        self.sqs = Sqs(lambda: scheduler.now, Random(f"{seed} sqs"), self.history, region=region, realism=realism)
        """The model of SQS itself."""
        self.faults = Faults(Random(f"{seed} faults"), self.history)
        """The faults that strike: `tarry.tools.testing.faults`."""
        self._until_closed = ExitStack()
        lineage = Lineage(self.history) if realism.recursion_is_stopped else None
        self._hosting = Hosting(self._simulation, self.sqs, self.faults, seed, self._until_closed, lineage)
        self.mappings = self._hosting.lambda_mappings
        """The event source mappings: disable, enable, scale and tag them with the methods of boto3's Lambda client."""
        self.world = self._hosting.world()
        """The world of the test's own code."""
        scheduler.around = partial(recording_simulation, self.history, self._simulation.actors)
        self._checked = self._warned = 0
        """The numbers of events that were checked, and about which was warned, in runs so far."""
        self._shown = SeenKeys()
        self._is_closed = False
        self._names: dict[str, str] = {}
        """The names of queues of templates, by logical id."""
        self._sends = 0

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
        if self.history.keeps:
            self._until_closed.enter_context(rarely_collected())
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
        if fifo and not name.endswith(".fifo"):
            raise ValueError(f"SQS wants the name of a FIFO queue to end in .fifo, got {name!r}")
        if dead_letter is not None and dead_letter not in self.sqs.queues():
            self.queue(dead_letter, retention=DEAD_LETTER_RETENTION_SECONDS)
        attributes = {
            "VisibilityTimeout": visibility_timeout,
            "MessageRetentionPeriod": retention,
            "DelaySeconds": delay,
            "MaximumMessageSize": maximum_message_size,
        }
        texts = {attribute: str(value) for attribute, value in attributes.items()}
        if name.endswith(".fifo"):
            texts["FifoQueue"] = "true"
        if dead_letter is not None:
            policy = {"deadLetterTargetArn": self.sqs.arn(dead_letter), "maxReceiveCount": max_receive_count}
            texts["RedrivePolicy"] = json.dumps(policy)
        try:
            return str(self.sqs.call("CreateQueue", {"QueueName": name, "Attributes": texts})["QueueUrl"])
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
        it is ``"Allow"``, Lambda refuses a message that 16 sends of the function in a row led to. ``"Allow"`` also sets
        ``TARRY_RECURSIVE_LOOP`` in the function's environment.

        Raises `ValueError` for an unknown queue, and for settings that Lambda refuses, such as a visibility timeout
        below the function's timeout; `TypeError` for an object that is not a handler.
        """
        check_handler(handler)
        variables = {RECURSIVE_LOOP_VARIABLE: recursive_loop}  # as a template sets it beside the property
        name, queue_arn = getattr(handler, "__name__", "function"), self.sqs.arn(self._named(queue))
        self._hosting.connect(
            handler,
            TemplateMapping(
                "", queue_arn, name, batch_size, window, reports_failures, max_concurrency, filters=tuple(filters)
            ),
            TemplateFunction(name, name, "", None, None, timeout, recursive_loop=recursive_loop),  # type: ignore[arg-type] # fractions of a second too
            (lambda: with_variables(variables)) if recursive_loop == "Allow" else nullcontext,
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
        if not isinstance(template, Template):
            template = read_template(template, parameters, self.sqs.region)
        if resources:
            self._hosting.use_moto(template.region, self.client, lambda: self.now)
        try:
            self._names |= self._hosting.add(template, environment or {}, resources=resources)
        except UsageError as error:
            raise TemplateError(str(error)) from error

    def module(self, function: str) -> ModuleType:
        """Return the module of a template's function, by its name or logical id, for a test that patches it.

        Raises `CodeError` if it cannot be imported.
        """
        return self._hosting.module(function)

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
        entry = Entry(body, delay, attributes, group_id, deduplication_id)
        outgoing = pack(entry, self.world, fifo=name.endswith(".fifo"))
        self._sends += 1
        if not self.faults.parts.keep(MESSAGES, self._sends):
            return outgoing.stable_id or self.world.new_id()
        try:
            # `pack` has checked what `call` would check.
            answer = self.sqs.answer("SendMessage", {"QueueUrl": self.sqs.url(name), **outgoing.parameters})
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
            raise ValueError(f"say where to (to=...): the source queues of {name!r} are {found}")
        target = queue_name(sources[0]) if to is None else self._named(to)
        arns = {"SourceArn": self.sqs.arn(name), "DestinationArn": self.sqs.arn(target)}
        self.sqs.call("StartMessageMoveTask", arns)

    def run(self, until: Callable[[], bool] | None = None, *, for_: float | None = None, check: bool = True) -> Report:
        """Run until nothing is left to do, until a condition holds, or for ``for_`` virtual seconds.

        With a condition, ``for_`` is the longest time to wait for it.

        Raises `AssertionError`, with the messages' timelines, if a rule is broken (`tools/testing/checkers/`): a
        message was lost, duplicated without a cause, or back before its delay was over, or a fault never struck. Also
        if messages fail forever in a queue without a dead-letter queue. ``check=False`` leaves that to the caller, who
        has the report. Raises `SimulationError` for a handler that takes real time, and for a run that seems endless;
        `CodeError` for a template's function that cannot be imported; `ValueError` for a check without a history.

        Warns if a handler returns failures that its mapping ignores, and of filters that AWS may treat differently.
        """
        __tracebackhide__ = True
        if for_ is not None and not 0 <= for_ < math.inf:
            raise ValueError(f"for_ is a number of seconds from 0, got {for_!r}")
        if self._simulation.scheduler.running:
            self._refuse_to_run()
        if self._is_closed:
            raise RuntimeError("the sandbox is closed")
        if check and not self.history.keeps:
            raise ValueError(f"{NOT_KEPT}, so no rule can be checked: call run(check=False)")
        self._play(until, for_)
        self.sqs.catch_up()
        report = self.report()
        if check and self._checked < len(report.events):
            self._checked = len(report.events)
            report.check()
        if check and until is None and for_ is None and not report.settled and (text := _stuck(report.history)):
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
        events = tuple(self.history.events) if self.history.keeps else None
        return Report(events, self._began, scheduler.now, settled, self.seed)

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
        self._is_closed = True
        with self._until_closed, without_killed_processes(self._simulation.actors):
            self._hosting.close()
            self._simulation.close()

    # inside

    def _play(self, until: Callable[[], bool] | None, seconds: float | None) -> None:
        scheduler, history = self._simulation.scheduler, self.history
        most = history.recorded + MOST_EVENTS if history.keeps else math.inf
        ends_at = scheduler.now + (GIVE_UP_SECONDS if seconds is None else seconds)
        scheduler.run(lambda: history.recorded > most or (until is not None and until()), ends_at)
        if history.recorded > most:
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
                        warnings.warn(f"the mapping of {event.fields['queue']}: {text}", stacklevel=OF_THE_TEST)
                case "answered" if text := ignored_failures(event.fields, self._shown):
                    warnings.warn(text, stacklevel=OF_THE_TEST)

    def _refuse_to_run(self) -> NoReturn:
        """Only a test lets time pass. In a handler an ordinary error would be one more failure to retry."""
        misuse = Misuse("a handler calls run() or advance() of the sandbox it runs in: let it call sandbox.sleep()")
        if self._simulation.actors.running is not None:
            self._simulation.actors.fail(misuse)
        raise misuse

    def _named(self, queue: str) -> str:
        """Return the name of a queue, which may be a logical id. Raises `ValueError` for an unknown one."""
        name = self._names.get(queue, queue)
        if name not in self.sqs.by_name:
            raise ValueError(f"the sandbox has no queue {queue!r}; it has {listed(self.sqs.queues())}")
        return name

    def _host(self, function: TemplateFunction, variables: Mapping[str, str]) -> FunctionHost:
        """Return a function of a template, for code that invokes it: that of its queue, or a new one."""
        return self._hosting.host(function, variables)

    def _invoker(self, find: Callable[[str], InvokeTarget], note: Callable[[str], None]) -> Invoker:
        """Return an invoker of functions, for code that invokes them."""
        call = partial(self.sqs.called_by, "http")
        return Invoker(self._simulation.scheduler, find, call, self.world.new_id, note)


def _stuck(history: RecordedHistory) -> str | None:
    """Return a sentence about messages that fail again and again in a queue without a dead-letter queue; else None."""
    found: dict[str, list[MessageCopy]] = {}
    for copy in history.copies.values():
        verdicts = [each.verdict for each in copy.deliveries if each.verdict is not None]
        fails = copy.end is None and verdicts[-1:] and verdicts[-1] in FAILED
        if fails and copy.queue in history.connected and history.redrive(copy.queue) is None:
            found.setdefault(copy.queue, []).append(copy)
    if not found:
        return None
    queue, copies = next(iter(found.items()))
    many = f"{len(copies)} messages of it fail" if len(copies) > 1 else f"message {copies[0].id} fails"
    return (
        f"the queue {queue!r} has no dead-letter queue, and {many} at every delivery, so the run would go on until SQS "
        "expires what fails: give the queue a dead_letter=, let the handler succeed in the end, or run(for_=...)"
    )
