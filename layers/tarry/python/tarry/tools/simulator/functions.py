"""The model of a Lambda function: execution environments, cold starts, timeouts, crashes, and throttling."""

import marshal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tarry.tools.simulator.actors import Killed, Process, VirtualEvent
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import (
    InvocationResult,
    error_payload,
    exit_reason,
    exited,
    message_ids,
    qualified_arn,
    through_json,
    timed_out,
)
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.simulator.scheduler import Timer
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.template import TemplateFunction
from tarry.world import World, use


@dataclass
class LambdaContext:
    """A context with the attributes of Lambda's own."""

    function_name: str
    invoked_function_arn: str
    memory_limit_in_mb: str
    aws_request_id: str
    time_left: Callable[[], float]
    """Returns the seconds until Lambda kills the process."""
    log_stream_name: str
    log_group_name: str = ""
    function_version: str = "$LATEST"
    identity: None = None
    client_context: None = None

    def __post_init__(self) -> None:
        self.log_group_name = self.log_group_name or f"/aws/lambda/{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int(self.time_left() * 1000))


Handler = Callable[[Any, Any], Any]
Done = Callable[[InvocationResult], None]

UNRESERVED_CONCURRENCY = 1_000  # the default limit of an account
WARM_SECONDS = 600.0
"""How long an idle environment is kept; Lambda guarantees no time."""

RECURSION_STOPPED = InvocationResult(
    "recursive",
    {"errorType": "RecursiveInvocationException", "errorMessage": "Recursive invocation detected"},
    "RecursiveInvocationException: Lambda refused the invocation because the function keeps sending messages to its "
    "own queue",
)

_current: ContextVar["Call | None"] = ContextVar("tarry.tools.simulator.call", default=None)


def current_call() -> "Call | None":
    """Return the invocation whose code calls this; None outside of invocations."""
    return _current.get()


@dataclass(eq=False)
class Function:
    """A function. It implements `tarry.tools.simulator.invocations.FunctionHost`.

    ``world`` makes the `World` of each new environment, with the clock and the threads of the simulation. ``around``
    makes a context manager that is entered while a thread of the function runs. ``lineage`` detects recursive loops;
    None for no detection.
    """

    simulation: Simulation
    handler: Handler
    world: Callable[[], World]
    history: History
    settings: TemplateFunction
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    lineage: Lineage | None = field(default=None, kw_only=True)
    cold_start_seconds: float = field(default=0.3, kw_only=True)

    def __post_init__(self) -> None:
        self.running: list[Call] = []
        """The running invocations, oldest first."""
        self._idle: list[Environment] = []
        self._created = 0
        self._ids = self.world()

    def invoke(self, event: dict[str, Any], done: Done, qualifier: str = "") -> None:
        """Start an invocation. The handler gets a copy of the event, which consists of JSON's types."""
        reserved = self.settings.reserved_concurrency
        if len(self.running) >= (UNRESERVED_CONCURRENCY if reserved is None else reserved):
            self.simulation.scheduler.after(0, partial(done, InvocationResult("throttled", text="Rate Exceeded.")))
            return
        name = self.settings.name
        if self.lineage is not None and self.lineage.stops(name, event, self.settings.recursive_loop):
            self.simulation.scheduler.after(0, partial(done, RECURSION_STOPPED))
            return
        environment = self._free_environment()
        call = Call(environment, self._ids.new_id(), marshal.dumps(event), message_ids(event), done, qualifier)
        self.running.append(call)
        if self.lineage is not None:
            self.lineage.begin(call.request_id, name, event)
        environment.take(call)

    def close(self) -> None:
        """End all environments."""
        for environment in [*self._idle, *(call.environment for call in self.running)]:
            environment.close()
        self._idle.clear()
        self.running.clear()

    def _free_environment(self) -> "Environment":
        """Return the idle environment that was used last, or a new one."""
        now = self.simulation.scheduler.now
        while self._idle and now - self._idle[0].used_at > WARM_SECONDS:
            self._idle.pop(0).close()
        if self._idle:
            return self._idle.pop()
        self._created += 1
        return Environment(self, self._created)

    def ended(self, call: "Call", result: InvocationResult) -> None:
        """Free the environment of an invocation that has ended, and report the result."""
        self.running.remove(call)
        if self.lineage is not None:
            self.lineage.end(call.request_id)
        call.environment.used_at = self.simulation.scheduler.now
        self._idle.append(call.environment)
        call.done(result)


@dataclass(eq=False)
class Call:
    """A running invocation."""

    environment: "Environment"
    request_id: str
    event: bytes
    """By `marshal`: JSON takes ten times as long, and here it would copy what came from JSON."""
    message_ids: list[str]
    done: Done
    qualifier: str
    deadline: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)
    """The errors of messages by delivery id, as far as the batch processor has logged them."""
    timer: Timer | None = None

    @property
    def is_running(self) -> bool:
        """Whether the invocation has not ended."""
        return self in self.environment.function.running

    def crash(self, why: str = "signal: killed") -> None:
        """Kill the process of the invocation at once. If the handler itself calls this, it does not return."""
        self.environment.crash(why)


class Environment:
    """An execution environment, whose process runs one invocation at a time.

    If the process has died, the next invocation starts a new one.
    """

    def __init__(self, function: Function, number: int) -> None:
        self.function = function
        self.used_at = 0.0
        self._scheduler = function.simulation.scheduler
        self._actors = function.simulation.actors
        self._log_stream = f"environment-{number}"
        self._process: Process | None = None
        self._has_died = False
        self._has_work: VirtualEvent
        self._call: Call | None = None

    def take(self, call: Call) -> None:
        """Run an invocation. The time to start a process counts towards the timeout only if an earlier one died."""
        settings = self.function.settings
        self._call = call
        is_cold = self._process is None
        start = self.function.cold_start_seconds if is_cold else 0.0
        free_start = 0.0 if self._has_died else start
        call.deadline = self._scheduler.now + free_start + settings.timeout_seconds
        call.timer = self._scheduler.at(call.deadline, partial(self._time_out, call))
        self._scheduler.after(start, partial(self._begin, call, is_cold))

    def crash(self, why: str) -> None:
        """Kill the process at once."""
        process = self._process
        if process is None:
            return
        current = self._actors.current()
        if current is not None and current.process is process:
            process.die(why)
        self._died(process, why)

    def close(self) -> None:
        """End the process without a result for its invocation."""
        if self._process is not None:
            self._process.kill()
        if self._call is not None and self._call.timer is not None:
            self._call.timer.cancel()
        self._process = self._call = None

    def _begin(self, call: Call, is_cold: bool) -> None:
        if self._call is not call:
            return  # the invocation timed out or crashed while the process started
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
        self._has_work.set()

    def _start(self) -> None:
        process = Process(self._actors, lambda why: self._died(process, why), self.function.around)
        self._process, self._has_work = process, VirtualEvent(self._actors)
        self._actors.start(partial(self._serve, process, self._has_work, self.function.world()), process)

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

    def _end(self, call: Call, result: InvocationResult) -> None:
        if self._call is not call:
            return
        self._call = None
        if call.timer is not None:
            call.timer.cancel()
        if self._process is not None:
            self._process.freeze()
            self._has_died = False
        self.function.ended(call, result)

    # in the process's own actor

    def _serve(self, process: Process, has_work: VirtualEvent, world: World) -> None:
        with use(world):
            while True:
                has_work.wait()
                has_work.clear()
                if (call := self._call) is not None:
                    result = self._handle(call, process)
                    self._scheduler.after(0, partial(self._end, call, result))

    def _handle(self, call: Call, process: Process) -> InvocationResult:
        settings, request_id = self.function.settings, call.request_id
        arn = settings.arn or f"arn:aws:lambda:us-east-1:123456789012:function:{settings.name}"
        context = LambdaContext(
            function_name=settings.name,
            invoked_function_arn=qualified_arn(arn, call.qualifier),
            memory_limit_in_mb=str(settings.memory_mb),
            aws_request_id=request_id,
            time_left=lambda: call.deadline - self._scheduler.now,
            log_stream_name=self._log_stream,
        )
        _current.set(call)
        try:
            value = through_json(self.function.handler(marshal.loads(call.event), context))
        except Killed:
            raise
        except Exception as error:  # noqa: BLE001 returned as Lambda returns it
            payload = error_payload(error, request_id)
            return InvocationResult("error", payload, f"{payload['errorType']}: {error}", request_id, call.errors)
        except BaseException as error:  # noqa: BLE001 the real runtime does not catch it either, and exits
            process.die(exit_reason(error))
        return InvocationResult("returned", value, request_id=request_id, errors=call.errors)
