"""The policies of a consumer, read in a process of its own, which imports its code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tarry
from tarry.failed.text import one_line
from tarry.failed.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.plan.policy import PlannedPolicy
    from tarry.tools.template import TemplateFunction

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

    Raises:
        UsageError: The handler cannot be imported, or ``module.attribute`` is not a consumer of tarry.
    """
    root = str(Path(tarry.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-c", "from tarry.tools.plan.loading import answer; answer()"]
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
    from tarry.tools.plan.policy import policy_of

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
