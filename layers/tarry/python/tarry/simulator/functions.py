"""A Lambda function: environments that are cold, warm or dead, a deadline that kills, a concurrency that throttles."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.simulator.context import LambdaContext
from tarry.simulator.flag import Flag
from tarry.simulator.history import History
from tarry.simulator.invocations import InvocationResult, exited, message_ids, timed_out
from tarry.simulator.marshalling import error_payload, exit_reason, through_json
from tarry.simulator.process import Killed, Process
from tarry.simulator.recursion import Lineage, RecursiveLoop
from tarry.simulator.stage import Stage
from tarry.world import World, use

if TYPE_CHECKING:
    from tarry.simulator.timeline import Timer

Handler = Callable[[Any, Any], Any]
Done = Callable[[InvocationResult], None]

UNRESERVED_CONCURRENCY = 1_000  # an account's, unless it asks for more
WARM_SECONDS = 600.0
"""How long an environment is kept without work; Lambda promises nothing here."""


RECURSION_STOPPED = InvocationResult(
    "recursive",
    {"errorType": "RecursiveInvocationException", "errorMessage": "Recursive invocation detected"},
    "RecursiveInvocationException: Lambda refused the invocation, since the function keeps sending to its own queue",
)

_current: "ContextVar[Call | None]" = ContextVar("tarry.simulator.call", default=None)


def current_call() -> "Call | None":
    """The invocation whose code calls this; None outside of any."""
    return _current.get()


@dataclass(frozen=True)
class FunctionSettings:
    """What a template says of a function."""

    name: str = "function"
    timeout_seconds: float = 3.0
    memory_mb: int = 128
    concurrency: int = UNRESERVED_CONCURRENCY
    """How many invocations run at once; beyond that Lambda throttles. ``ReservedConcurrentExecutions``."""
    cold_start_seconds: float = 0.3
    arn: str = ""
    recursive_loop: RecursiveLoop = "Terminate"
    """The function's ``RecursiveLoop``: whether Lambda stops it when it keeps sending to a queue that feeds it."""

    @property
    def invoked_arn(self) -> str:
        return self.arn or f"arn:aws:lambda:us-east-1:123456789012:function:{self.name}"


class Function:
    """One function. `tarry.simulator.invocations.FunctionHost`.

    ``world`` makes the `World` of each new environment, whose clock and threads must be the stage's. ``around`` makes
    what is entered while one of its threads runs. ``lineage`` detects recursive loops; None allows them.
    """

    def __init__(
        self,
        stage: Stage,
        handler: Handler,
        world: Callable[[], World],
        history: History,
        settings: FunctionSettings | None = None,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        lineage: Lineage | None = None,
    ) -> None:
        self.stage = stage
        self.handler = handler
        self.world = world
        self.history = history
        self.settings = settings or FunctionSettings()
        self.around = around
        self._lineage = lineage if self.settings.recursive_loop == "Terminate" else None
        self.running: list[Call] = []
        """The invocations that are under way, oldest first."""
        self._idle: list[Environment] = []
        self._made = 0
        self._ids = world()

    def invoke(self, event: dict[str, Any], done: Done) -> None:
        """Invoke it with an event, which goes through JSON as it does in the real runtime."""
        if len(self.running) >= self.settings.concurrency:
            self.stage.timeline.after(0, partial(done, InvocationResult("throttled", text="Rate Exceeded.")))
            return
        name = self.settings.name
        if self._lineage is not None and self._lineage.is_recursive(name, event):
            self.history.record("recursion_stopped", function=name, delivery_ids=message_ids(event))
            self.stage.timeline.after(0, partial(done, RECURSION_STOPPED))
            return
        environment = self._free_environment()
        call = Call(environment, self._ids.new_id(), json.dumps(event), message_ids(event), done)
        self.running.append(call)
        if self._lineage is not None:
            self._lineage.begin(call.request_id, name, event)
        environment.take(call)

    def close(self) -> None:
        """End all environments."""
        for environment in [*self._idle, *(call.environment for call in self.running)]:
            environment.close()
        self._idle.clear()
        self.running.clear()

    def _free_environment(self) -> "Environment":
        """A warm one, the last used first; a new one if there is none."""
        now = self.stage.timeline.now
        while self._idle and now - self._idle[0].used_at > WARM_SECONDS:
            self._idle.pop(0).close()
        if self._idle:
            return self._idle.pop()
        self._made += 1
        return Environment(self, self._made)

    def ended(self, call: "Call", answer: InvocationResult) -> None:
        """An invocation has ended: its environment is free."""
        self.running.remove(call)
        if self._lineage is not None:
            self._lineage.end(call.request_id)
        call.environment.used_at = self.stage.timeline.now
        self._idle.append(call.environment)
        call.done(answer)


class Call:
    """One invocation."""

    def __init__(
        self, environment: "Environment", request_id: str, event: str, message_ids: list[str], done: Done
    ) -> None:
        self.environment = environment
        self.request_id = request_id
        self.event = event
        self.message_ids = message_ids
        self.done = done
        self.deadline = 0.0
        self.timer: Timer | None = None

    def crash(self, why: str = "signal: killed") -> None:
        """Kill the process that runs it, at once. Called by the handler itself, it does not return."""
        self.environment.crash(why)


class Environment:
    """A process that handles one invocation at a time. It is made anew, slowly, for the first one after its death."""

    def __init__(self, function: Function, number: int) -> None:
        self.function = function
        self.used_at = 0.0
        self._timeline = function.stage.timeline
        self._actors = function.stage.actors
        self._log_stream = f"environment-{number}"
        self._process: Process | None = None
        self._has_died = False
        self._work: Flag
        self._call: Call | None = None

    def take(self, call: Call) -> None:
        """Run an invocation; if the process must start first, that costs the invocation's time only after a death."""
        settings = self.function.settings
        self._call = call
        is_cold = self._process is None
        start = settings.cold_start_seconds if is_cold else 0.0
        free_start = 0.0 if self._has_died else start
        call.deadline = self._timeline.now + free_start + settings.timeout_seconds
        call.timer = self._timeline.at(call.deadline, partial(self._time_out, call))
        self._timeline.after(start, partial(self._begin, call, is_cold))

    def crash(self, why: str) -> None:
        """The process dies, whatever it is doing."""
        process = self._process
        if process is None:
            return
        current = self._actors.current()
        if current is not None and current.process is process:
            process.die(why)
        self._died(process, why)

    def close(self) -> None:
        """The process ends; nothing is told of it."""
        if self._process is not None:
            self._process.kill()
        if self._call is not None and self._call.timer is not None:
            self._call.timer.cancel()
        self._process = self._call = None

    def _begin(self, call: Call, is_cold: bool) -> None:
        if self._call is not call:
            return  # it has timed out, or was crashed, while the process started
        name = self.function.settings.name
        self.function.history.record(
            "invoked",
            function=name,
            request_id=call.request_id,
            delivery_ids=call.message_ids,
            cold=is_cold,
            deadline=call.deadline,
        )
        if self._process is None:
            self._start()
        else:
            self._process.thaw()
        self._work.set()

    def _start(self) -> None:
        process = Process(self._actors, lambda why: self._died(process, why), self.function.around)
        self._process, self._work = process, Flag(self._actors)
        self._actors.start(partial(self._serve, process, self._work, self.function.world()), process)

    def _time_out(self, call: Call) -> None:
        self._end_process()
        self._end(call, timed_out(self.function.settings.timeout_seconds, call.request_id))

    def _died(self, process: Process, why: str) -> None:
        call = self._call
        if self._process is not process:
            return
        self._end_process()
        if call is not None:
            self._end(call, exited(why, call.request_id))

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process, self._has_died = None, True

    def _end(self, call: Call, answer: InvocationResult) -> None:
        if self._call is not call:
            return
        self._call = None
        if call.timer is not None:
            call.timer.cancel()
        if self._process is not None:
            self._process.freeze()
            self._has_died = False
        self.function.ended(call, answer)

    # in the environment's own actor

    def _serve(self, process: Process, work: Flag, world: World) -> None:
        with use(world):
            while True:
                work.wait()
                work.clear()
                if (call := self._call) is not None:
                    answer = self._handle(call, process)
                    self._timeline.after(0, partial(self._end, call, answer))

    def _handle(self, call: Call, process: Process) -> InvocationResult:
        settings, request_id = self.function.settings, call.request_id
        context = LambdaContext(
            function_name=settings.name,
            invoked_function_arn=settings.invoked_arn,
            memory_limit_in_mb=str(settings.memory_mb),
            aws_request_id=request_id,
            time_left=lambda: call.deadline - self._timeline.now,
            log_stream_name=self._log_stream,
        )
        _current.set(call)
        try:
            value = through_json(self.function.handler(json.loads(call.event), context))
        except Killed:
            raise
        except Exception as error:  # noqa: BLE001 told as Lambda tells it
            payload = error_payload(error, request_id)
            return InvocationResult("error", payload, f"{payload['errorType']}: {error}", request_id)
        except BaseException as error:  # noqa: BLE001 the real runtime client does not catch it either
            process.die(exit_reason(error))
        return InvocationResult("returned", value, request_id=request_id)
