"""Functions as local processes, under the runtime client of AWS and under that of tarry."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.functions import host
from tests.processes import started

from .processes import Hosted, JobsFunction, ends_soon, is_alive, wait_until_stopped

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


def test_return_values_are_converted_to_json_and_have_six_megabytes_at_most(jobs: JobsFunction) -> None:  # PLATFORM 25
    async def scenario(hosted: Hosted) -> None:
        assert await hosted.value(answer="decimal") == 1.5
        assert await hosted.value(answer="nan") == "NaN"
        assert await hosted.value(answer="bytes") == {"a": 1}
        answer = await hosted.call(answer="set")
        assert answer.kind == "error"
        assert answer.value["errorType"] == "Runtime.MarshalError"
        assert "Unable to marshal response" in answer.text
        assert await hosted.value(length="x" * 6_000_000) == 6_000_000
        answer = await hosted.call(answer="long")
        assert answer.kind == "error"
        assert answer.text.startswith("Function.ResponseSizeTooLarge: ")
        assert await hosted.value(length="x") == 1

    jobs.play(scenario)


def test_the_context_is_that_of_lambda(jobs: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        answer = await hosted.call(answer="context")
        left = answer.value.pop("left")
        assert 100_000 < left <= 200_000
        assert answer.value == {
            "aws_request_id": answer.request_id,
            "function_name": "jobs",
            "function_version": "$LATEST",
            "invoked_function_arn": "arn:aws:lambda:us-east-1:123456789012:function:jobs",
            "memory_limit_in_mb": "256",
            "log_group_name": "/aws/lambda/jobs",
            "log_stream_name": "environment-1",
        }

    jobs.play(scenario, timeout_seconds=200, memory_mb=256)


def test_an_error_has_the_traceback_of_the_handler_and_the_process_continues(jobs: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        before = await hosted.value()
        answer = await hosted.call(**{"raise": "no luck"})
        assert (answer.kind, answer.text) == ("error", "ValueError: no luck")
        assert answer.value["errorType"] == "ValueError"
        assert answer.value["requestId"] == answer.request_id
        assert [frame.split(",")[0] for frame in answer.value["stackTrace"]] == [f'  File "{jobs.folder}/app.py"']
        assert (await hosted.value())["pid"] == before["pid"]

    jobs.play(scenario)


# crashes


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"exit": 3}, "Runtime exited with error: exit status 3"),
        ({"exit": 0}, "Runtime exited without providing a reason"),
        ({"sys.exit": 4}, "Runtime exited with error: exit status 4"),
        ({"signal": signal.SIGKILL}, "Runtime exited with error: signal: killed"),
        ({"signal": signal.SIGSEGV}, "Runtime exited with error: signal: segmentation fault"),
    ],
)
def test_a_crash_has_the_error_of_lambda_and_a_new_process_is_started(
    own: JobsFunction, wish: dict[str, int], text: str
) -> None:
    """Its last output is not lost, even without a newline."""

    async def scenario(hosted: Hosted) -> None:
        before = await hosted.value()
        answer = await hosted.call(**wish)
        assert (answer.kind, answer.text) == ("crash", text)
        assert answer.value["errorType"] == "Runtime.ExitError"
        assert answer.value["errorMessage"] == f"RequestId: {answer.request_id} Error: {text}"
        assert (await hosted.value())["pid"] != before["pid"]
        assert [event.fields["cold"] for event in hosted.events("invoked")] == [True, False, True]
        assert hosted.lines == (["last words"] if "exit" in wish else [])

    own.play(scenario)


def test_at_the_timeout_the_process_and_its_children_are_killed(jobs: JobsFunction) -> None:  # PLATFORM 28
    async def scenario(hosted: Hosted) -> None:
        pid = (await hosted.value())["pid"]
        answer = await hosted.call(**{"stuck with child": 600})
        assert (answer.kind, answer.text) == ("timeout", "Task timed out after 1.00 seconds")
        assert answer.value["errorType"] == "Sandbox.Timedout"
        child = int(hosted.lines[0])
        assert ends_soon(pid)
        assert ends_soon(child)
        report = hosted.events("report")[-1].fields
        assert report["kind"] == "timeout"
        assert 1 <= report["seconds"] < 600

    jobs.play(scenario, timeout_seconds=1)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the environment of processes is not accessible")
def test_processes_in_their_own_sessions_end_with_the_handler(own: JobsFunction) -> None:  # SPEC N1
    async def scenario(hosted: Hosted) -> None:
        daemons.append(await hosted.value(daemon=60))
        await hosted.call(exit=1)
        assert ends_soon(daemons[0])
        daemons.append(await hosted.value(daemon=60))
        assert is_alive(daemons[1])

    daemons: list[int] = []
    own.play(scenario)
    assert ends_soon(daemons[1])


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
    """The deadline shows when the time of an invocation began: before or after the handler was loaded.

    The deadline is known to lie between two times.
    """
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
        pids = {(await answer).value["pid"] for answer in both}
        assert len(pids) == 2
        assert len(hosted.host.environments) == 2
        # The last used environment is reused first; the other one stays warm.
        assert len({(await hosted.value())["pid"] for _ in range(3)}) == 1
        assert len(hosted.events("invoked")) == 5

    own.play(scenario, reserved_concurrency=2)


def test_a_thread_that_outlives_its_invocation_is_frozen_until_the_next_one(jobs: JobsFunction) -> None:  # PLATFORM 26
    async def scenario(hosted: Hosted) -> None:
        pid = (await hosted.value(beat=True))["pid"]
        await asyncio.to_thread(wait_until_stopped, pid)
        await asyncio.sleep(0.3)
        assert await hosted.value(pause=True) >= 0.3

    jobs.play(scenario)


def test_a_restart_loads_new_code_while_running_invocations_keep_the_old(own: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        await hosted.host.warm()
        running = hosted.call(sleep=0.2)
        await asyncio.sleep(0.05)
        own.code("def handler(event, context): return 'new'")
        await hosted.host.reload()
        assert (await hosted.call()).value == "new"
        old = (await running).value["pid"]
        assert (await hosted.call()).value == "new"
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
        assert len({(await hosted.value())["pid"] for _ in range(2)}) == 1
        assert limits[-1] == 1
        assert (await hosted.call(exit=1)).kind == "crash"
        assert limits[-1] == 0
        assert (await hosted.call()).kind == "throttled"
        own.code("def handler(event, context): return 'mended'")
        await hosted.host.reload()
        assert limits[-1] is None
        assert await hosted.value() == "mended"
        assert len(errors) == 1
        assert [event.fields["kind"] for event in hosted.events("report")] == [
            *["returned"] * 3,
            "crash",
            "returned",
        ]

    own.play(scenario, on_broken=errors.append)


# history


def test_each_line_is_recorded_with_its_invocation_before_the_report(jobs: JobsFunction) -> None:
    async def scenario(hosted: Hosted) -> None:
        await hosted.host.warm()
        answer = await hosted.call(say="hello", Records=[{"messageId": "m-1"}, {"messageId": "m-2"}])
        events = [event for event in hosted.history.events if event.fields["function"] == "jobs"]
        assert [event.what for event in events] == ["invoked", "logged", "logged", "logged", "report"]
        assert {event.fields["request_id"] for event in events} == {answer.request_id}
        invoked, out, err, logged, report = (event.fields for event in events)
        assert invoked["delivery_ids"] == ["m-1", "m-2"]
        assert invoked["cold"] is False
        assert (out["line"], err["line"], out["fields"]) == ("hello", "hello", None)
        fields = logged["fields"]
        assert (fields["message"], fields["level"], fields["logger"], fields["count"]) == (
            "logged hello",
            "WARNING",
            "jobs",
            3,
        )
        assert fields["requestId"] == answer.request_id
        assert (report["kind"], report["batch"], report["init_seconds"]) == ("returned", 2, None)
        assert 0 < report["seconds"] < 60

    jobs.play(scenario)


def test_long_lines_are_split(own: JobsFunction) -> None:
    own.code("def handler(event, context): print('x' * 600_000)")

    async def scenario(hosted: Hosted) -> None:
        await hosted.value()
        assert sum(map(len, hosted.lines)) == 600_000
        assert max(map(len, hosted.lines)) <= 256 * 1024

    own.play(scenario)


# handlers that cannot be loaded

BROKEN = {
    "a missing module": ("import helper", "No module named 'no_such_library'", "import no_such_library"),
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
        assert hosted.lines == (["connecting"] if mistake == "an error during the import" else [])
        assert hosted.host.environments == []

    jobs.play(scenario)


def test_after_a_failed_start_the_next_one_is_delayed(own: JobsFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FIRST_PAUSE_SECONDS", 0.3)
    own.code("import time; print(time.monotonic()); int('x')")

    async def scenario(hosted: Hosted) -> None:
        for _ in range(3):
            answer = await hosted.call()
            assert answer.kind == "error"
            assert answer.text.startswith("ValueError: invalid literal")
        began = [float(line) for line in hosted.lines if not line.startswith("{")]
        assert len(began) == 3
        assert began[1] - began[0] > 0.3
        assert began[2] - began[1] > 0.6

    own.play(scenario)


def test_a_restart_ends_the_pause_after_a_failed_start(own: JobsFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_PAUSE_SECONDS", 3_600)
    monkeypatch.setattr(host, "FIRST_PAUSE_SECONDS", 3_600)
    own.code("int('x')")

    async def scenario(hosted: Hosted) -> None:
        assert (await hosted.call()).kind == "error"
        own.code("def handler(event, context): return 'repaired'")
        waiting = hosted.call()
        await asyncio.sleep(0.05)
        await hosted.host.reload()
        assert (await waiting).value == "repaired"

    own.play(scenario)


# cleanup


def test_close_leaves_no_process_behind_even_during_an_invocation(jobs: JobsFunction) -> None:
    pids: list[int] = []
    ports: list[int] = []

    async def scenario(hosted: Hosted) -> None:
        pids.extend([(await hosted.value())["pid"], await hosted.value(child=30)])
        ports.append(int((await hosted.value(answer="api")).rpartition(":")[2]))
        running = hosted.call(sleep=30)
        await asyncio.sleep(0.05)
        assert is_alive(pids[0])
        assert not running.done()

    jobs.play(scenario)
    assert all(ends_soon(pid) for pid in pids)
    for port in ports:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))


@pytest.mark.parametrize("state", ["warm", "starting"])
def test_no_process_outlives_a_killed_parent(own: JobsFunction, state: str) -> None:
    if state == "starting":
        own.code("import os, time; print(os.getpid()); time.sleep(30)")
    program = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        from tests.integration.local.processes import JobsFunction

        async def scenario(hosted):
            hosted.history.listen(lambda event: print(event.fields.get("line", ""), flush=True))
            answer = await hosted.call(child=30)
            print((await hosted.value())["pid"], answer.value, flush=True)
            await asyncio.sleep(30)

        jobs = JobsFunction.__new__(JobsFunction)
        jobs.folder, jobs.client = Path({str(own.folder)!r}), "own"
        jobs.play(scenario, timeout_seconds=60)
    """)
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "layers/tarry/python"), str(root)])}
    with started([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        printed: list[str] = []
        while not printed:
            assert parent.poll() is None
            printed = parent.stdout.readline().split()
        pids = [int(each) for each in printed]
        time.sleep(0.05)
        assert all(map(is_alive, pids))
        parent.kill()
        parent.wait()
    assert all(ends_soon(pid) for pid in pids)
