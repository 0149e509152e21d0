"""The facts of a consumer's policy and failure steps that its timeline depends on, as values of any process."""

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import tarry
from tarry.decide.retry_policy import Backoff, RetryPolicy, bounds_of, delay_of, is_known
from tarry.decide.steps import BuiltInStep, StepList, name_of_step
from tarry.failed.text import one_line
from tarry.failed.usage import UsageError
from tarry.message.delivery import FailureStep
from tarry.support.guards import name_of
from tarry.support.values import Value, fields_of
from tarry.tools.template import TemplateFunction

SAMPLES = 200
"""How often the delay of a backoff of your own is asked for, if it does not tell its bounds."""


class DelayBounds(NamedTuple):
    """The shortest and the longest delay, or the earliest and the latest time, in seconds."""

    earliest: float
    latest: float

    def plus(self, other: "DelayBounds") -> "DelayBounds":
        """Return the sum of two bounds."""
        return DelayBounds(self.earliest + other.earliest, self.latest + other.latest)

    def at_most(self, seconds: float) -> "DelayBounds":
        """Return the bounds, cut at ``seconds``."""
        return DelayBounds(min(self.earliest, seconds), min(self.latest, seconds))


@dataclass(frozen=True)
class PlannedStep:
    """A failure step. ``delays`` are those of its re-sends or runs, in order; None for the queue's own delay."""

    leads_to: str
    """The kind of its outcome; empty for a step of your own."""
    name: str
    """Its class and id, or the function's name."""
    handles: frozenset[str] = frozenset()
    """The reasons of the failures that it may handle."""
    id: str = ""
    times: int = 0
    delays: tuple[DelayBounds, ...] | None = None
    queue: str | None = None
    """The name, URL or ARN of the target; None for the message's own queue, or its dead-letter queue."""
    chooses_queue: bool = False
    """Whether a function chooses the target."""
    breaks_order: bool = False


@dataclass(frozen=True)
class PlannedPolicy:
    """The policy of a consumer for one queue."""

    name: str
    max_attempts: int
    retries_in_place: bool
    """Whether ``max_attempts`` applies: a failure step retries in place."""
    backoff: str
    """The backoff as text."""
    unhandled_wait: float
    """For how many seconds a message waits that no failure step takes."""
    delays: tuple[DelayBounds, ...] = ()
    """The delays after attempts 1 to ``max_attempts - 1``."""
    is_sampled: bool = False
    """Whether bounds of a backoff of your own are those of samples."""
    steps: tuple[PlannedStep, ...] = ()
    concurrency: int = 1
    is_consumer: bool = True
    """Whether the function is a consumer of tarry."""


def policy_of(name: str, policy: RetryPolicy, steps: StepList, *, fifo: bool, concurrency: int = 1) -> PlannedPolicy:
    """Return the facts of a policy and its failure steps for a standard or a FIFO queue."""
    backoff = policy.backoff_of(fifo=fifo)
    built_in = (fields_of(each) for each in steps.steps if isinstance(each, BuiltInStep))
    waits = [backoff, *(options["delay"] for options in built_in if options.get("delay"))]
    return PlannedPolicy(
        name=name,
        max_attempts=policy.max_attempts,
        retries_in_place=steps.retries_in_place,
        backoff=_shown(backoff),
        delays=_delays(backoff, policy.max_attempts - 1),
        is_sampled=any(bounds_of(each, 1) is None for each in waits),
        unhandled_wait=policy.longest_delay(fifo=fifo),
        steps=tuple(_step(each) for each in steps.steps),
        concurrency=concurrency,
    )


def _step(step: FailureStep) -> PlannedStep:
    if not isinstance(step, BuiltInStep):
        return PlannedStep("", name_of_step(step))
    options = fields_of(step)
    times, delay, queue = options.get("times", 0), options.get("delay"), options.get("queue")
    return PlannedStep(
        step.leads_to,
        name_of_step(step),
        step.handles,
        id=options.get("id", ""),
        times=times,
        delays=None if delay is None else _delays(delay, times),
        queue=queue if isinstance(queue, str) else None,
        chooses_queue=callable(queue),
        breaks_order=options.get("breaks_order", False),
    )


def _delays(backoff: Backoff, last: int) -> tuple[DelayBounds, ...]:
    """Return the bounds of the delays after attempts 1 to ``last``, as the backoff tells or samples show."""
    found = []
    for attempt in range(1, last + 1):
        bounds = bounds_of(backoff, attempt)
        if bounds is None:
            rng = Random(attempt)
            sampled = [delay_of(backoff, attempt, rng) for _ in range(SAMPLES)]
            bounds = min(sampled), max(sampled)
        found.append(DelayBounds(*bounds))
    return tuple(found)


def _shown(backoff: Backoff) -> str:
    """Return a backoff as it is written, without defaults."""
    if not is_known(backoff):
        return f"{name_of(type(backoff))}, a backoff of your own"
    fields: dict[str, Any] = fields_of(cast("Value", backoff))
    jitter = fields.pop("jitter")
    shown = [
        f"[{', '.join(map(_number, each))}]" if isinstance(each, tuple) else _number(each) for each in fields.values()
    ]
    if jitter is not None:
        shown.append(f"jitter={_number(jitter)}")
    return f"{type(backoff).__name__}({', '.join(shown)})"


def _number(number: float | str) -> str:
    return repr(number) if isinstance(number, str) else f"{number:.10g}"


IMPORT_SECONDS = 30
MOST_DETAIL_LINES = 20


@dataclass(frozen=True)
class WantedPolicies:
    """A consumer to import, and its queues by name, each with whether it is FIFO."""

    name: str
    """A function's logical id, or ``module.attribute``."""
    queues: Mapping[str, bool]
    function: TemplateFunction | None = None
    """The function; None for ``module.attribute``, imported from the current directory."""
    variables: Mapping[str, str] | None = None
    """All environment variables of the process; None for those of this one."""


@dataclass(frozen=True)
class NotLoaded:
    """Why a consumer cannot be used."""

    text: str
    details: str = ""


def load_policies(wanted: WantedPolicies) -> dict[str, PlannedPolicy]:
    """Return the policies of a consumer by queue; for another function of a template those of tarry's defaults.

    Raises `UsageError` if the handler cannot be imported, or ``module.attribute`` is not a consumer of tarry.
    """
    root = str(Path(tarry.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-c", "from tarry.tools.plan.policy import answer; answer()"]
    try:
        done = subprocess.run(
            command,
            input=pickle.dumps(wanted),
            capture_output=True,
            timeout=IMPORT_SECONDS,
            check=False,
            env={**(os.environ if wanted.variables is None else wanted.variables), "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{wanted.name}: importing its code takes more than {IMPORT_SECONDS} seconds") from None
    try:
        found = pickle.loads(done.stdout)
    except Exception:  # noqa: BLE001 the process ended before it could answer
        written = "\n".join(done.stderr.decode(errors="replace").splitlines()[-MOST_DETAIL_LINES:])
        text = f"{wanted.name}: its code ends the process at import (exit status {done.returncode})"
        raise UsageError(text, written) from None
    if isinstance(found, NotLoaded):
        raise UsageError(found.text, found.details)
    policies: dict[str, PlannedPolicy] = found
    return policies


# in the process


def answer() -> None:
    """Read `WantedPolicies` from stdin; write its policies, or a `NotLoaded`, to stdout."""
    wanted: WantedPolicies = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the code may print
    answers.write(pickle.dumps(_found(wanted)))
    answers.close()


def _found(wanted: WantedPolicies) -> dict[str, PlannedPolicy] | NotLoaded:
    from tarry.tools.simulator.code import Code, CodeError

    if wanted.function is None:
        return _in_module(wanted)
    code = Code(wanted.function, wanted.variables or {})
    try:
        with code.running():
            module, attribute = code.load(), (wanted.function.handler or "").rpartition(".")[2]
            return _policies(wanted, getattr(module, attribute))
    except CodeError as error:
        return NotLoaded(str(error), error.details)


def _in_module(wanted: WantedPolicies) -> dict[str, PlannedPolicy] | NotLoaded:
    module, _, attribute = wanted.name.rpartition(".")
    sys.path.insert(0, "")
    try:
        found = import_module(module)
    except Exception as error:  # noqa: BLE001 the user's code
        return NotLoaded(f"{module} cannot be imported here: {type(error).__name__}: {one_line(str(error))}")
    except SystemExit as error:
        return NotLoaded(f"{module} cannot be imported here: it calls sys.exit({error.code!r})")
    if not hasattr(found, attribute):
        consumers = [name for name, value in vars(found).items() if _consumer(value) is not None]
        known = f"; its consumers are {', '.join(consumers)}" if consumers else ""
        return NotLoaded(f"{module} has no attribute {attribute}{known}")
    return _policies(wanted, getattr(found, attribute))


def _policies(wanted: WantedPolicies, handler: Any) -> dict[str, PlannedPolicy] | NotLoaded:
    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import StepList

    consumer = _consumer(handler)
    if consumer is None and wanted.function is not None and _takes_an_event(handler):
        return {
            queue: replace(policy_of(wanted.name, RetryPolicy(), StepList(None), fifo=fifo), is_consumer=False)
            for queue, fifo in wanted.queues.items()
        }
    if consumer is None:
        kind = "class" if isinstance(handler, type) else type(handler).__name__
        return NotLoaded(f"{wanted.name} is not a consumer of tarry, but a {kind}: is its @consumer missing?")
    return {
        queue: policy_of(
            consumer.name, consumer.policy, consumer.steps.of(queue), fifo=fifo, concurrency=consumer.concurrency
        )
        for queue, fifo in wanted.queues.items()
    }


def _takes_an_event(handler: Any) -> bool:
    """Return whether Lambda can call a handler; a function of a message is one whose decorator is missing."""
    try:
        signature(handler, follow_wrapped=False).bind(None, None)
    except (TypeError, ValueError):
        return False
    return not isinstance(handler, type)


def _consumer(handler: Any) -> Any:
    """Return the consumer below the decorators of a handler; None if there is none."""
    from tarry.consumer import Consumer

    for _ in range(100):
        if handler is None or isinstance(handler, Consumer):
            return handler
        handler = getattr(handler, "__wrapped__", None)
    return None
