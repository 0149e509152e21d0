"""Functions as local processes, under the runtime client of AWS and under that of tarry."""

import asyncio
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.functions import host, runtime
from tarry.tools.local.functions.runtime import RuntimeApi

from .processes import ARN, PATIENCE_SECONDS, Hosted, JobsFunction, ends_soon, is_alive, wait_until_stopped

CLIENTS = [
    pytest.param(
        "awslambdaric",
        marks=pytest.mark.skipif(not find_spec("awslambdaric"), reason="it has no build for this system"),
    ),
    "own",
]


@pytest.fixture(params=CLIENTS)
def jobs(tmp_path: Path, request: pytest.FixtureRequest) -> JobsFunction:
    return JobsFunction(tmp_path, request.param)


@pytest.fixture
def own(tmp_path: Path) -> JobsFunction:
    """A function for tests that do not depend on the client."""
    return JobsFunction(tmp_path, "own")


# results


def test_the_context_the_result_the_error_and_the_log_of_a_handler_are_those_of_lambda(jobs: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        await hosted.host.warm()
        answer = await hosted.call(answer="context")
        assert 100_000 < answer.value.pop("left") <= 200_000
        assert answer.value == {
            "aws_request_id": answer.request_id,
            "function_name": "jobs",
            "function_version": "$LATEST",
            "invoked_function_arn": ARN,
            "memory_limit_in_mb": "256",
            "log_group_name": "/aws/lambda/jobs",
            "log_stream_name": "environment-1",
        }
        await results(hosted)
        before = await hosted.value()
        failed = await hosted.call(**{"raise": "no luck"})
        assert (failed.kind, failed.text) == ("error", "ValueError: no luck")
        assert (failed.value["errorType"], failed.value["requestId"]) == ("ValueError", failed.request_id)
        assert [frame.split(",")[0] for frame in failed.value["stackTrace"]] == [f'  File "{jobs.folder}/app.py"']
        assert (await hosted.value())["pid"] == before["pid"], "the process continues"
        await log(hosted)

    async def results(hosted: Hosted) -> None:  # PLATFORM 25
        for answer, value in (("decimal", 1.5), ("nan", "NaN"), ("bytes", {"a": 1})):
            assert await hosted.value(answer=answer) == value
        refused = await hosted.call(answer="set")
        assert (refused.kind, refused.value["errorType"]) == ("error", "Runtime.MarshalError")
        assert "Unable to marshal response" in refused.text
        assert await hosted.value(length="x" * 6_000_000) == 6_000_000
        refused = await hosted.call(answer="long")
        assert (refused.kind, refused.text.split()[0]) == ("error", "Function.ResponseSizeTooLarge:")
        assert await hosted.value(length="x") == 1

    async def log(hosted: Hosted) -> None:
        hosted.history.events.clear()
        answer = await hosted.call(say="hello", Records=[{"messageId": "m-1"}, {"messageId": "m-2"}])
        events = hosted.history.events
        assert [event.what for event in events] == ["invoked", "logged", "logged", "logged", "report"]
        assert {(event.fields["function"], event.fields["request_id"]) for event in events} == {
            ("jobs", answer.request_id)
        }
        invoked, out, err, logged, report = (event.fields for event in events)
        assert (invoked["delivery_ids"], invoked["cold"]) == (["m-1", "m-2"], False)
        assert (out["line"], err["line"], out["fields"]) == ("hello", "hello", None)
        expected = {"message": "logged hello", "level": "WARNING", "logger": "jobs", "count": 3}
        assert {**expected, "requestId": answer.request_id}.items() <= logged["fields"].items()
        assert (report["kind"], report["batch"], report["init_seconds"]) == ("returned", 2, None)
        assert 0 < report["seconds"] < 60
        hosted.history.events.clear()
        await hosted.value(print="x" * 600_000)
        assert (sum(map(len, hosted.lines)), max(map(len, hosted.lines))) == (600_000, 256 * 1024), "it is split"

    jobs.play(scenario, timeout_seconds=200, memory_mb=256)


# ends of processes


def test_a_crash_has_the_error_of_lambda_and_a_new_process_is_started(own: JobsFunction) -> None:
    """Its last output is not lost, even without a newline."""

    async def scenario(hosted: Hosted) -> None:
        for wish, text, lines in (
            ({"exit": 3}, "Runtime exited with error: exit status 3", ["last words"]),
            ({"exit": 0}, "Runtime exited without providing a reason", ["last words"]),
            ({"sys.exit": 4}, "Runtime exited with error: exit status 4", []),
            ({"signal": signal.SIGKILL}, "Runtime exited with error: signal: killed", []),
            ({"signal": signal.SIGSEGV}, "Runtime exited with error: signal: segmentation fault", []),
        ):
            before = await hosted.value()
            hosted.history.events.clear()
            answer = await hosted.call(**wish)
            error = {"errorType": "Runtime.ExitError", "errorMessage": f"RequestId: {answer.request_id} Error: {text}"}
            assert (answer.kind, answer.text, answer.value) == ("crash", text, error)
            assert (await hosted.value())["pid"] != before["pid"]
            assert [event.fields["cold"] for event in hosted.events("invoked")] == [False, True]
            assert hosted.lines == lines

    own.play(scenario)


def test_at_the_timeout_the_process_and_its_children_are_killed(own: JobsFunction) -> None:  # PLATFORM 28
    async def scenario(hosted: Hosted) -> None:
        pid = (await hosted.value())["pid"]
        answer = await hosted.call(**{"stuck with child": 600})
        assert (answer.kind, answer.text) == ("timeout", "Task timed out after 1.00 seconds")
        assert answer.value["errorType"] == "Sandbox.Timedout"
        assert ends_soon(pid)
        assert ends_soon(int(hosted.lines[0]))
        report = hosted.events("report")[-1].fields
        assert report["kind"] == "timeout"
        assert 1 <= report["seconds"] < 600

    own.play(scenario, timeout_seconds=1)


DAEMON = "daemon" if Path("/proc").is_dir() else "child"
"""A process in a session of its own, which is found by its environment."""


def test_no_process_is_left_by_a_crash_or_by_the_end_even_during_an_invocation(own: JobsFunction) -> None:  # SPEC N1
    pids: list[int] = []
    ports: list[int] = []

    async def scenario(hosted: Hosted) -> None:
        of_a_crash = await hosted.value(**{DAEMON: 600})
        await hosted.call(exit=1)
        assert ends_soon(of_a_crash)
        pids.extend([(await hosted.value())["pid"], await hosted.value(child=600), await hosted.value(**{DAEMON: 600})])
        ports.append(int((await hosted.value(answer="api")).rpartition(":")[2]))
        running = hosted.call(sleep=600)
        await asyncio.sleep(0.05)
        assert all(map(is_alive, pids))
        assert not running.done()

    own.play(scenario)
    assert all(map(ends_soon, pids))
    for port in ports:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))


def test_a_process_that_shows_no_environment_yet_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC N1
    starting = subprocess.Popen(["sleep", "600"])
    environment = tmp_path / str(starting.pid) / "environ"
    environment.parent.mkdir()
    environment.write_bytes(b"")
    monkeypatch.setattr(runtime, "PROC", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: environment.write_bytes(b"PATH=/bin\0API=127.0.0.1:7\0"))
    try:
        runtime.kill_marked("API", "127.0.0.1:70")
        assert starting.poll() is None
        environment.write_bytes(b"")
        runtime.kill_marked("API", "127.0.0.1:7")
        assert starting.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    finally:
        starting.kill()


LOADS_SLOWLY = """
import os, time
load_began = time.time()
time.sleep(0.2)
load_ended = time.time()

def handler(event, context):
    if "exit" in event:
        os._exit(1)
    before = time.time()
    left = context.get_remaining_time_in_millis() / 1000
    return {"load": [load_began, load_ended], "deadline": [before + left, time.time() + left]}
"""


def test_only_a_restart_counts_towards_the_time_of_an_invocation(own: JobsFunction) -> None:  # PLATFORM 28
    """The deadline, known to lie between two times, shows when the time began: before or after the load."""
    own.code(LOADS_SLOWLY)
    timeout = 200

    async def scenario(hosted: Hosted) -> None:
        first = await hosted.value()
        seconds_since_load = time.time() - first["load"][1]
        await hosted.call(exit=1)
        restarted = await hosted.value()
        assert first["deadline"][1] - timeout > first["load"][1] - 0.01
        assert restarted["deadline"][0] - timeout < restarted["load"][0]
        first_report, _, restarted_report = (event.fields for event in hosted.events("report"))
        assert first_report["init_seconds"] > 0.2
        assert first_report["seconds"] < seconds_since_load + 0.01
        assert restarted_report["init_seconds"] is None
        assert restarted_report["seconds"] > 0.2

    own.play(scenario, timeout_seconds=timeout)


# environments


def test_invocations_above_the_reserved_concurrency_are_throttled(own: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        both = [hosted.call(sleep=0.2), hosted.call(sleep=0.2)]
        third = await hosted.call()
        assert (third.kind, third.text) == ("throttled", "Rate Exceeded.")
        assert len({(await answer).value["pid"] for answer in both}) == len(hosted.host.environments) == 2
        # The last used environment is reused first; the other one stays warm.
        assert len({(await hosted.value())["pid"] for _ in range(3)}) == 1
        assert len(hosted.events("invoked")) == 5

    own.play(scenario, reserved_concurrency=2)


def test_a_thread_that_outlives_its_invocation_is_frozen_until_the_next_one(own: JobsFunction) -> None:  # PLATFORM 26
    async def scenario(hosted: Hosted) -> None:
        pid = (await hosted.value(beat=True))["pid"]
        await asyncio.to_thread(wait_until_stopped, pid)
        await asyncio.sleep(0.3)
        assert await hosted.value(pause=True) >= 0.3

    own.play(scenario)


def test_a_restart_loads_new_code_while_running_invocations_keep_the_old(own: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        await hosted.host.warm()
        running = hosted.call(sleep=0.2)
        await asyncio.sleep(0.05)
        own.code("def handler(event, context): return 'new'")
        await hosted.host.reload()
        assert await hosted.value() == "new"
        old = (await running).value["pid"]
        assert await hosted.value() == "new"
        assert await asyncio.to_thread(ends_soon, old)

    own.play(scenario)


def test_code_that_cannot_be_imported_fails_no_invocation(own: JobsFunction) -> None:
    """The old code runs while a process has it; after that, invocations are throttled, which costs no attempt."""
    errors: list[UsageError] = []
    limits: list[int | None] = []

    async def scenario(hosted: Hosted) -> None:
        hosted.host.on_limit = limits.append
        await hosted.host.warm()
        running = hosted.call(sleep=0.3)
        own.code("def handler(:")
        # One more process is needed before the change is noticed: its failed start is not the fault of the message.
        assert (await hosted.call()).kind == "throttled"
        assert "SyntaxError: invalid syntax" in str(errors[0])
        with pytest.raises(UsageError, match="SyntaxError: invalid syntax"):
            await hosted.host.reload()
        assert (await running).kind == "returned"
        assert len({(await hosted.value())["pid"] for _ in range(2)}) == limits[-1] == 1
        assert ((await hosted.call(exit=1)).kind, limits[-1]) == ("crash", 0)
        assert (await hosted.call()).kind == "throttled"
        own.code("def handler(event, context): return 'mended'")
        await hosted.host.reload()
        assert await hosted.value() == "mended"
        assert (limits[-1:], len(errors)) == ([None], 1)
        kinds = [event.fields["kind"] for event in hosted.events("report")]
        assert kinds == [*["returned"] * 3, "crash", "returned"]

    own.play(scenario, on_broken=errors.append)


# handlers that cannot be loaded

BROKEN = {
    "a missing module": (
        "print('connecting'); import helper",
        "No module named 'no_such_library'",
        "import no_such_library",
    ),
    "an error during the import": ("print('connecting'); int('x')", "ValueError: invalid literal for int()", "app.py"),
    "a syntax error": ("def handler(:", "SyntaxError: invalid syntax", "app.py"),
    "a missing function": ("other = 1", "Handler 'handler' missing on module 'app'", ""),
    "an exit": ("import sys; sys.exit(5)", "the process ended, exit status 5", ""),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_handler_that_cannot_be_imported_is_refused_with_its_traceback(jobs: JobsFunction, mistake: str) -> None:
    code, text, traceback = BROKEN[mistake]
    jobs.code(code)
    jobs.code("import no_such_library", "helper.py")

    async def scenario(hosted: Hosted) -> None:
        with pytest.raises(UsageError, match=r"Jobs: its handler app\.handler cannot be imported from") as refusal:
            await hosted.host.warm()
        assert text in str(refusal.value)
        assert traceback in refusal.value.details
        assert not any(part in refusal.value.details for part in ("awslambdaric", "tarry/local", "importlib"))
        # the line of the client would repeat the error
        assert hosted.lines == (["connecting"] if "connecting" in code else [])
        assert hosted.host.environments == []

    jobs.play(scenario)


def test_after_a_failed_start_the_next_one_is_delayed_longer_each_time(
    own: JobsFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "FIRST_PAUSE_SECONDS", 0.0123)
    own.code("int('x')")
    pauses: list[float] = []

    async def scenario(hosted: Hosted) -> None:
        loop = asyncio.get_running_loop()
        later = loop.call_later
        monkeypatch.setattr(
            loop, "call_later", lambda seconds, *rest: (pauses.append(seconds), later(seconds, *rest))[1]
        )
        for _ in range(3):
            answer = await hosted.call()
            assert (answer.kind, answer.text[:26]) == ("error", "ValueError: invalid litera")

    own.play(scenario)
    assert [seconds for seconds in pauses if seconds < 0.1] == [0.0123, 0.0246, 0.0492]


def test_a_restart_ends_the_pause_after_a_failed_start(own: JobsFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_PAUSE_SECONDS", 3_600)
    monkeypatch.setattr(host, "FIRST_PAUSE_SECONDS", 3_600)
    own.code("int('x')")

    async def scenario(hosted: Hosted) -> None:
        assert (await hosted.call()).kind == "error"
        own.code("def handler(event, context): return 'repaired'")
        waiting = hosted.call()
        assert await asyncio.wait([waiting], timeout=0.3) == (set(), {waiting})
        await hosted.host.reload()
        assert (await waiting).value == "repaired"

    own.play(scenario)


def test_garbled_requests_to_the_runtime_api_are_refused_without_a_log_record(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> bytes:
        api = RuntimeApi("arn", lambda: None)
        address, _, port = (await api.open()).partition(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        writer.write(b"GET /2018-06-01/runtime/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 404 " in await reader.readline()
        writer.write(b"8\r\n{}\r\nPOST /2018-06-01/runtime/invocation HTTP/1.1\r\n\r\n")
        response = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await api.close()
        return response

    assert b" 400 " in asyncio.run(scenario())
    assert caplog.records == []
