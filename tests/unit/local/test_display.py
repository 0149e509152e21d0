"""The output of `tarry local`: log lines of functions, timeline and summary of a run, plain lines, and the screen."""

import asyncio
import contextlib
import io
import logging
import re
import sys
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tarry.failed.text import coarse
from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.local.cloud import in_background
from tarry.tools.local.runs.printing import Transcript, lines_of, logging_to, print_summary, print_timeline
from tarry.tools.local.runs.report import RunReport, Waits
from tarry.tools.local.session import _hints
from tarry.tools.local.show.board import FunctionRow, QueueRow, Scene
from tarry.tools.local.show.screen import FRAME_SECONDS, PlainView, Screen, frame, shares
from tarry.tools.local.show.timeline import LogLine, LogReader, MessageTimeline
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.simulator.lambda_invoke import PendingCall

# log lines


@pytest.fixture
def log() -> LogReader:
    return LogReader(verbose=False)


def shown(log: LogReader, what: str = "logged", **fields: Any) -> list[str]:
    lines = log.lines(HistoryEvent(1.0, what, {"function": "Orders", **fields}))
    return [f"{line.function}: {line.text}" + (f" ({line.style})" if line.style else "") for line in lines]


def shown_fields(log: LogReader, **fields: Any) -> str:
    return "\n".join(shown(log, line="{}", fields={"level": "WARNING", **fields}))


REJECTED = "Lambda rejects the response, so the whole batch comes back"
WHY = "the response is not an object: 'ok'"
REPORT = {"kind": "returned", "init_seconds": None, "batch": 1}


@pytest.mark.parametrize(
    ("what", "fields", "text"),
    [
        ("logged", {"line": "hello \x1b[31m", "fields": None}, "hello \\x1b[31m"),
        ("report", {**REPORT, "seconds": 0.0032, "batch": 10}, "10 messages in 3.2 ms (dim)"),
        ("report", {**REPORT, "seconds": 0.0332, "init_seconds": 0.4}, "1 message in 33 ms, cold start 400 ms (dim)"),
        ("report", {**REPORT, "seconds": 2, "kind": "timeout"}, "1 message in 2000 ms (timeout) (dim)"),
        ("answered", {"why": "Task timed out after 2.00 seconds"}, "Task timed out after 2.00 seconds (red)"),
        ("answered", {"why": ""}, ""),
        ("answered", {"kind": "returned", "why": WHY}, f"{REJECTED}: {WHY} (red)"),
    ],
)
def test_output_invocations_and_failed_batches_are_shown(
    log: LogReader, what: str, fields: dict[str, Any], text: str
) -> None:
    assert shown(log, what, **fields) == ([f"Orders: {text}"] if text else [])


def test_a_json_log_line_is_shown_as_text(log: LogReader) -> None:
    shown_line = shown_fields(log, message="slow", customer=7, timestamp="2027")
    assert shown_line == "Orders: WARNING slow  customer=7 (yellow)"
    retry = {"event": "waiting_retry", "state": "WAITING_RETRY", "delivery_id": "d"}
    assert shown_fields(log, message="retry", **retry) == "", "a line about a message is in its timeline"
    # `on_outcome` may log the state, and a logger of Powertools has the ids of the message.
    own = shown_fields(log, message="outcome", state="DEAD_LETTERED", delivery_id="d", message_id="d")
    assert own == "Orders: WARNING outcome  state=DEAD_LETTERED delivery_id=d message_id=d (yellow)"
    frames = ['  File "app.py", line 3, in handler\n    raise ValueError("x")\n']
    failed = shown_fields(log, message="it failed", stackTrace=frames, errorType="ValueError", errorMessage="x")
    trace = 'Traceback (most recent call last):\n  File "app.py", line 3, in handler\n    raise ValueError("x")'
    assert failed == f"Orders: WARNING it failed\n{trace}\nValueError: x (yellow)"


def test_an_error_with_a_traceback_in_its_text_is_shown_once(log: LogReader) -> None:
    error = "3 errors.\n\nTraceback (most recent call last):\n  File 'app.py'\nValueError: no\n"
    text = shown_fields(log, level="ERROR", errorMessage=error, errorType="BatchError", stackTrace=["  File 'x'\n"])
    head = "ERROR 3 errors. ValueError: no\nTraceback (most recent call last):\n  File 'x'\nBatchError: 3 errors."
    assert text.startswith(f"Orders: {head}\n")
    assert text.count("ValueError: no") == 2
    assert shown(log, "answered", kind="error", why="BatchError") == []
    late = shown(log, "answered", kind="timeout", why=f"BatchError: {error}")
    assert late == ["Orders: BatchError: 3 errors. ValueError: no (red)"]


def test_a_traceback_is_shown_at_the_first_error_of_its_kind(log: LogReader) -> None:
    fields = {"event": "waiting_retry", "state": "WAITING_RETRY", "delivery_id": "d", "stackTrace": ["  File\n"]}
    assert [bool(shown_fields(log, **fields, fingerprint=each)) for each in ("a", "a", "b")] == [True, False, True]
    verbose = LogReader(verbose=True)
    assert all(shown_fields(verbose, **fields, fingerprint=each) for each in ("a", "a"))


def test_failures_that_a_mapping_ignores_are_warned_about_once(log: LogReader) -> None:
    answer = {"queue": "orders", "kind": "returned", "why": "", "ignored": ["a", "b"]}
    [line] = shown(log, "answered", **answer)
    assert line.startswith(
        ": WARNING Orders returned batchItemFailures with 2 messages of orders, but the mapping lacks"
    )
    assert shown(log, "answered", **answer) == []
    assert len(shown(log, "answered", **answer | {"queue": "others"})) == 1


# the output of functions in virtual time


def test_printed_lines_and_those_of_loggers_are_recorded_with_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter(range(1, 9))
    transcript = Transcript(lambda: next(times))
    with contextlib.redirect_stdout(transcript):  # a logger that is made at import writes to the terminal then
        early = logging.StreamHandler(sys.stdout)
        early.emit(logging.makeLogRecord({"msg": "imported"}))
    with transcript.recording():
        print("one")
        for handler in (logging.StreamHandler(), early):
            handler.emit(logging.makeLogRecord({"msg": "careful"}))
        exec("print('(Pdb) ', end='')", {"__name__": "pdb"})  # a debugger's output is shown immediately
        sys.stderr.write("two\nthr")
        print("ee", end="")
    assert [line.text for line in transcript.lines] == ["one", "careful", "careful", "two", "three"]
    assert transcript.lines[0] == LogLine(1, "", "one")
    assert capsys.readouterr() == ("(Pdb) ", "imported\n")


@pytest.mark.parametrize("verbose", [False, True])
def test_the_info_lines_of_awss_sdk_are_not_recorded(verbose: bool) -> None:
    transcript = Transcript(lambda: 0)
    with logging_to(transcript, verbose=verbose), transcript.recording():
        for name in ("botocore.credentials", "app"):
            logging.getLogger(name).handle(logging.makeLogRecord({"name": name, "levelno": 20, "msg": f"from {name}"}))
    assert [line.text.partition(": ")[2] for line in transcript.lines] == ["from app"]


# the timeline and the summary of a run


def message(number: int | None, *steps: tuple[float, State], queue: str = "orders", why: str = "") -> MessageTimeline:
    waits = {State.WAITING_RETRY: 90}
    transitions = [Transition(at, state, f"{number}", queue, 1, waits.get(state), why) for at, state in steps]
    return MessageTimeline(f"{number or 'abcdefgh-1'}", queue, number, transitions)


def printed(*messages: MessageTimeline, output: tuple[LogLine, ...] = ()) -> list[str]:
    return [f"{each.stamp} | {each.names} | {each.text}" for each in lines_of(messages, output, began=0)]


def test_simultaneous_steps_are_one_line_and_lines_are_in_the_order_of_time_and_then_of_states() -> None:
    messages = [message(number, (0, State.IN_FLIGHT)) for number in (1, 2, 3, 5, 6, 8)]
    assert printed(*messages) == ["+0 s | #1-3 #5 #6 #8 | IN_FLIGHT 1"]
    one = message(1, (0, State.IN_FLIGHT), (2, State.COMMITTED))
    other = message(2, (0, State.IN_FLIGHT), (1, State.WAITING_RETRY), (2, State.IN_FLIGHT))
    assert printed(one, other, output=(LogLine(0, "Plain", "hello"),) * 2) == [
        "+0 s | #1 #2 | IN_FLIGHT 1",
        "+0 s |  | Plain: hello",
        "+0 s |  | Plain: hello",
        "+1 s | #2 | WAITING_RETRY 1 min 30 s",
        "+2 s | #2 | IN_FLIGHT 1",
        "+2 s | #1 | COMMITTED",
    ]
    assert printed(message(1, (0, State.COMMITTED)), message(None, (5, State.READY), queue="mails")) == [
        "+0 s | #1 orders | COMMITTED",
        "+5 s | abcdefgh mails | READY",
    ]


def failing(attempts: int, why: str = "Busy") -> MessageTimeline:
    steps = [
        Transition(90 * number - 90, state, "1", "orders", number, 90 if state is State.WAITING_RETRY else None, why)
        for number in range(1, attempts + 1)
        for state in (State.IN_FLIGHT, State.WAITING_RETRY)
    ]
    return MessageTimeline("1", "orders", 1, steps)


def test_more_than_three_attempts_with_the_same_end_are_folded() -> None:
    mentioned = [LogLine(90 * number, "Plain", "Busy (traceback above)") for number in range(1, 10)]
    assert printed(failing(10), output=tuple(mentioned)) == [
        "+0 s | #1 | IN_FLIGHT 1",
        "+0 s | #1 | WAITING_RETRY 1 min 30 s",
        "+1 min 30 s |  | Plain: Busy (traceback above)",
        "+13 min 30 s |  | Plain: Busy (traceback above), 8 more times",
        "+13 min 30 s | #1 | IN_FLIGHT 2-10, each WAITING_RETRY 1 min 30 s",
    ]
    assert len(printed(failing(3), output=tuple(mentioned[:2]))) == 6 + 2
    changing = failing(10)
    changing.steps = [replace(step, text=f"{number // 2}") for number, step in enumerate(changing.steps)]
    assert len(printed(changing)) == 20


def on_a_console(draw: Any, *arguments: Any, terminal: bool = False, width: int = 80, height: int = 30) -> list[str]:
    """Return the lines that a function draws on a console, without colours."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, height=height, color_system=None)
    draw(console, *arguments)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_summary_folds_attempts_and_refusals_with_the_same_end() -> None:
    refused = [Transition(30 * number, State.WAITING_RETRY, "2", "orders", None, 30, "no") for number in range(10)]
    one = failing(10)
    one.steps = [*one.steps, Transition(1_000, State.COMMITTED, "1", "orders")]
    lost = replace(failing(4), lost="it expired")
    report = RunReport([one, MessageTimeline("2", "orders", 2, refused), lost])
    assert any("2-10, each" in line for line in on_a_console(print_summary, report, terminal=True, width=200))
    lines = on_a_console(print_summary, report)
    start = "IN_FLIGHT 1 -> WAITING_RETRY 1 min 30 s -> IN_FLIGHT"
    assert [line.partition(" orders  ")[2] for line in lines if " orders  " in line] == [
        f"{start} 2-10, each WAITING_RETRY 1 min 30 s -> COMMITTED",
        "WAITING_RETRY 30 s -> WAITING_RETRY 30 s, 9 more times  (no)",
        f"{start} 2-4, each WAITING_RETRY 1 min 30 s -> LOST  (it expired)",
    ]


def test_long_lines_are_folded_in_a_column_on_a_terminal_alone() -> None:
    messages = [message(number, (7_300, State.WAITING_RETRY), why=f"app.Busy: {'no ' * 40}") for number in (1, 2)]
    draw = lambda console: print_timeline(console, messages, [], began=0)  # noqa: E731
    head, first, *more = on_a_console(draw, terminal=True)
    assert head == "2 messages to orders; no wait takes real time."
    assert first.startswith("+2 h 1 min  #1 #2  WAITING_RETRY 1 min 30 s  (Busy: no no")
    assert all(line.startswith(" " * 19) for line in more)
    assert max(map(len, (first, *more))) <= 80
    assert len(on_a_console(draw)) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (29.7, "30 s"), (60, "1 min"), (3_599, "59 min 59 s"), (5_430, "1 h 30 min"), (90_000, "1 d 1 h")],
)
def test_a_time_is_shown_in_whole_seconds_or_minutes(seconds: float, text: str) -> None:
    assert coarse(seconds) == text


# what a run that gave up would still need, and what another terminal can do

BEGAN = 1_000_000.0


def ended(state: State, delay: float | None = None, id: str = "m") -> MessageTimeline:
    return MessageTimeline(id, "orders", 1, [Transition(BEGAN, state, id, "orders", 1, delay)])


def test_the_give_up_that_would_suffice_is_named_if_it_is_known() -> None:
    virtual, real = Waits(BEGAN, is_real=False), Waits(BEGAN, is_real=True)
    waiting = [ended(State.WAITING_RETRY, 95.0), ended(State.WAITING_RETRY, 42.0), ended(State.COMMITTED)]
    assert virtual.for_messages(waiting, ()) == ", the last is due after 1 min 35 s (--give-up 110 waits for it)"
    at = f"{datetime.fromtimestamp(BEGAN + 95):%H:%M:%S}"  # noqa: DTZ006 local time is shown
    assert real.for_messages(waiting, ()) == (
        f", the last is due at {at} (--give-up 110 waits for it, --skip-time skips the wait)"
    )
    running = [*waiting, ended(State.IN_FLIGHT, id="n")]
    assert virtual.for_messages(running, ()) == " (--give-up SECONDS waits longer)"
    assert virtual.for_messages(running, {"m", "n"}) == virtual.for_messages([ended(State.COMMITTED)], ()) == ""
    calls = (("Mailer", 60, 180), ("Biller", 120, 120), ("Mailer", 5, 5))
    pending = [PendingCall(name, BEGAN + due, BEGAN + last) for name, due, last in calls]
    assert list(virtual.for_calls(pending)) == [
        "2 asynchronous invocations of Mailer did not end, the last attempt is due after 3 min "
        "(--give-up 190 waits for it).",
        "1 asynchronous invocation of Biller did not end, the last attempt is due after 2 min "
        "(--give-up 130 waits for it).",
    ]


def test_the_dead_letter_queue_to_look_at_is_one_that_no_function_consumes() -> None:
    targets = {"orders": "orders-dlq", "mails": "mails-dlq", "orders-dlq": None}
    queues = {name: SimpleNamespace(dead_letters=target) for name, target in targets.items()}
    plan = SimpleNamespace(template=SimpleNamespace(queues=queues))
    cloud: Any = SimpleNamespace(plan=plan, sqs=None, url="http://127.0.0.1:4576")
    assert list(_hints(cloud, ["orders", "mails", "orders-dlq"])) == [
        "To see why messages were dead-lettered:",
        "tarry failed show --queue mails-dlq --endpoint-url http://127.0.0.1:4576",
    ]
    assert list(_hints(cloud, ["orders", "orders-dlq"])) == []


# a running cloud: plain lines, and the screen

NOW = 1_000.0


def on_screen(state: State, **more: object) -> MessageTimeline:
    steps = [Transition(NOW - 5, State.IN_FLIGHT, "d", "orders", attempt=2)]
    steps.append(Transition(NOW - 5, state, "d", "orders", **more))  # type: ignore[arg-type]
    return MessageTimeline("1f6c0a2b-ffff", "orders", None, steps)


def drawn(scene: Scene, width: int = 100, height: int = 30) -> list[str]:
    """Draw one frame; return its lines without colours."""
    draw = lambda console: console.print(frame(scene, console))  # noqa: E731
    return on_a_console(draw, terminal=True, width=width, height=height)


def test_without_a_terminal_each_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    lines = PlainView(stream)
    lines.step(replace(on_screen(State.WAITING_RETRY, delay=30, text="because\x1b " * 20), number=1))
    lines.say(LogLine(0.0, "Orders", "hello"))
    [line] = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  #1 1f6c0a2b orders  WAITING_RETRY 30 s  \((because\\x1b ?)+\)", line)
    assert re.fullmatch(r"\d\d:\d\d:\d\d Orders: hello\n", capsys.readouterr().err)


def test_a_terminal_shows_frames_and_the_log_lines_at_the_end() -> None:
    stream = io.StringIO()
    screen = Screen(Console(file=stream, force_terminal=True, width=80, height=24))

    async def show() -> None:
        lines: list[LogLine] = []
        async with screen.showing(lambda: Scene("the title", 0.0, [QueueRow("orders", ready=len(lines))], lines=lines)):
            await asyncio.sleep(FRAME_SECONDS / 2)
            lines.append(LogLine(0.0, "Orders", "logged once"))
            await asyncio.sleep(FRAME_SECONDS)

    asyncio.run(show())
    frames, _, after = stream.getvalue().partition("\x1b[?1049l")
    assert frames.startswith("\x1b[?1049h")
    assert frames.count("the title") >= 2
    assert "logged once" in after
    assert "\x1b[?25h" in after + frames[-20:]  # the cursor is there again


def test_an_exception_of_a_background_task_ends_its_context() -> None:
    async def fails() -> None:
        raise ValueError("no frame")

    async def run() -> None:
        async with in_background(fails()):
            await asyncio.sleep(60)

    with pytest.raises(ValueError, match="no frame"):
        asyncio.run(run())


FULL = Scene(
    "tarry local  template.yaml  SQS http://127.0.0.1:4576",
    NOW,
    [QueueRow(f"queue-{number}-with-a-long-name", 12_345, 3, 0, 77, f"dlq-{number}", 2) for number in range(9)],
    [
        FunctionRow(f"Function{number}", 2, 1, 120, 3, 1, "10 messages in 33 ms, cold start 402 ms")
        for number in range(9)
    ],
    [on_screen(State.WAITING_RETRY, delay=95, text=f"app.Busy: {'no ' * 50}")] * 100,
    [LogLine(NOW, "Function1", f"ERROR {'word ' * 60}\n  File", "red")] * 100,
    {"COMMITTED": 1_234, "DEAD_LETTERED": 2},
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("height", [16, 24, 60])
def test_a_frame_fits_the_terminal_and_every_part_has_a_line(width: int, height: int) -> None:
    lines = drawn(FULL, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    share = shares(FULL, height)
    assert min(share) >= 1
    assert share.log >= share.functions


def test_a_frame_shows_messages_and_queues_first_those_that_need_attention() -> None:
    waiting = on_screen(State.WAITING_RETRY, delay=95, text="app.Busy: no")
    shown_message = drawn(Scene("", NOW, messages=[waiting]))[4]
    assert shown_message.split() == "1f6c0a2b orders WAITING_RETRY 2 1 min 30 s Busy: no".split()
    lines = drawn(Scene("", NOW, [QueueRow("orders", 1_200, 3, 0, 12, "orders-dlq", 2)]))
    assert lines[4].split() == ["orders", "1,200", "3", "0", "12", "s", "2", "in", "orders-dlq"]
    rows = [QueueRow(f"empty-{number}") for number in range(20)]
    assert any("busy" in line for line in drawn(Scene("", NOW, [*rows, QueueRow("busy", 1)]), height=16))
    many = [*[on_screen(State.COMMITTED)] * 50, waiting]
    lines = drawn(Scene("", NOW, messages=many, lines=[LogLine(NOW, "", "x")]), height=16)
    assert sum("WAITING_RETRY" in line for line in lines) == 1, "half of the lines are for failed messages"


def test_control_characters_of_messages_and_functions_are_escaped() -> None:
    hostile = "\x1b[2J[bold]x[/bold]"
    dead = MessageTimeline(hostile, hostile, None, [Transition(NOW, State.DEAD_LETTERED, "d", "q", text=hostile)])
    seen = "\n".join(
        drawn(Scene("", NOW, [QueueRow(hostile)], [FunctionRow(hostile)], [dead], [LogLine(NOW, hostile, "x")]))
    )
    assert "\x1b" not in seen
    assert "\\x1b[2J[bold]x[/bold]" in seen
