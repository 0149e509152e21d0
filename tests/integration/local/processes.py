"""A function in a temporary folder, hosted as processes, and checks of leftover processes."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tarry.tools.local.functions.code import Endpoints, variables_of
from tarry.tools.local.functions.host import ProcessFunction
from tarry.tools.local.functions.runtime import Client, Launcher
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.template import TemplateFunction
from tests.leftovers import MARK

PATIENCE_SECONDS = 120.0
"""The limit of all waits, for a busy machine; it only ends a test that hangs."""
ARN = "arn:aws:lambda:us-east-1:123456789012:function:jobs"

APP = """
import decimal, json, logging, os, subprocess, sys, threading, time

beat_at = longest_pause = 0.0
def beat():
    global beat_at, longest_pause
    beat_at = time.monotonic()
    while True:
        time.sleep(0.005)
        now = time.monotonic()  # read once, and stored last: a pause between any two steps is noticed
        longest_pause, beat_at = max(now - beat_at, longest_pause), now
def pause():
    return max(time.monotonic() - beat_at, longest_pause)  # in this order: the thread stores longest_pause first

def handler(event, context):
    match event:
        case {"sleep": seconds}:
            time.sleep(seconds)
        case {"exit": status}:
            sys.stdout.write("last words")
            os._exit(status)
        case {"sys.exit": status}:
            sys.exit(status)
        case {"signal": number}:
            os.kill(os.getpid(), number)
        case {"raise": text}:
            raise ValueError(text)
        case {"answer": "set"}:
            return {1, 2}
        case {"answer": "decimal"}:
            return decimal.Decimal("1.5")
        case {"answer": "nan"}:
            return float("nan")
        case {"answer": "bytes"}:
            return b'{"a": 1}'
        case {"answer": "api"}:
            return os.environ["AWS_LAMBDA_RUNTIME_API"]
        case {"answer": "long"}:
            return "x" * (6 * 1024 * 1024 + 200)
        case {"answer": "context"}:
            return {name: getattr(context, name) for name in (
                "aws_request_id", "function_name", "function_version", "invoked_function_arn", "memory_limit_in_mb",
                "log_group_name", "log_stream_name")} | {"left": context.get_remaining_time_in_millis()}
        case {"say": text}:
            print(text)
            print(text, file=sys.stderr)
            logging.getLogger("jobs").warning("logged %s", text, extra={"count": 3})
        case {"print": text}:
            print(text)
        case {"child": seconds}:
            return subprocess.Popen(["sleep", str(seconds)]).pid
        case {"daemon": seconds}:
            return subprocess.Popen(["sleep", str(seconds)], start_new_session=True).pid
        case {"stuck with child": seconds}:
            print(subprocess.Popen(["sleep", str(seconds)]).pid)
            time.sleep(seconds)
        case {"beat": True}:
            threading.Thread(target=beat, daemon=True).start()
        case {"pause": True}:
            return pause()
        case {"length": text}:
            return len(text)
    return {"pid": os.getpid(), "left": context.get_remaining_time_in_millis()}
"""


class Hosted:
    """A hosted function."""

    def __init__(self, host: ProcessFunction, history: History) -> None:
        self.host = host
        self.history = history

    def call(self, **event: Any) -> asyncio.Future[InvocationResult]:
        answer: asyncio.Future[InvocationResult] = asyncio.get_running_loop().create_future()
        self.host.invoke(event, answer.set_result)
        return answer

    async def value(self, **event: Any) -> Any:
        """Invoke the function; return its value."""
        answer = await self.call(**event)
        assert answer.kind == "returned", answer
        return answer.value

    def events(self, what: str) -> list[HistoryEvent]:
        return [event for event in self.history.events if event.what == what]

    @property
    def lines(self) -> list[str]:
        return [event.fields["line"] for event in self.events("logged")]


class JobsFunction:
    """A function with its code in ``folder / "app.py"``."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder = folder
        self.client = client
        self.code(APP)

    def code(self, text: str, name: str = "app.py") -> None:
        (self.folder / name).write_text(text)

    def play(self, scenario: Callable[[Hosted], Awaitable[None]], **settings: Any) -> Hosted:
        """Host the function, run the scenario, and close it; ``settings`` are those of the template, and on_broken."""
        settings = {"timeout_seconds": 60, **settings}
        on_broken = settings.pop("on_broken", None)
        function = TemplateFunction(
            "Jobs", "jobs", ARN, self.folder, settings.pop("handler", "app.handler"), **settings
        )

        async def hosted() -> Hosted:
            history = History(time.time)
            launcher = Launcher()
            variables = variables_of(function, {MARK: os.environ.get(MARK, "")}, Endpoints(sqs="http://127.0.0.1:9"))
            host = Hosted(
                ProcessFunction(function, variables, history, launcher, self.client, on_broken=on_broken), history
            )
            try:
                await asyncio.wait_for(scenario(host), PATIENCE_SECONDS)
            finally:
                await host.host.close()
                launcher.close()
            return host

        return asyncio.run(hosted(), debug=False)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return Path("/proc").is_dir() is False


def wait_until_stopped(pid: int) -> None:
    """Wait until a process is stopped by a signal; return at once without `/proc`."""
    stat = Path(f"/proc/{pid}/stat")
    until = time.monotonic() + PATIENCE_SECONDS
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.01)


def ends_soon(pid: int) -> bool:
    until = time.monotonic() + PATIENCE_SECONDS
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_alive(pid)
