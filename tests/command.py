"""The command `tarry` as a process of its own, which ends with the test that starts it.

To start Python and load the modules of the command takes longer than most commands run. So a server loads them once for
all tests of a worker, and forks a process for each command. That is a process like any other: it has a session, folder,
environment and standard streams of its own, and can be killed, interrupted and waited for.
"""

import atexit
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import forkserver, get_context
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from tests.processes import PATIENCE_SECONDS, end

TARRY = [
    sys.executable,
    "-c",
    # Tests started in the background of a shell or under nohup ignore signals; child processes would inherit that.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "[signal.signal(each, signal.SIG_DFL) for each in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)]; "
    "from tarry.cli import main; main()",
]
"""The command as a process that is not forked."""

_forking = get_context("forkserver")
_forking.set_forkserver_preload(
    "tests.command tarry.tools.cli.app boto3 botocore.parsers aiohttp.web "
    "samtranslator.translator.translator tarry.tools.local.session tarry.tools.check.start".split()
)


class Command:
    """A running command, with what the tests need of `subprocess.Popen`."""

    stdin = stderr = None

    def __init__(
        self,
        arguments: Sequence[str],
        streams: Sequence[int],
        folder: Path,
        environment: Mapping[str, str],
        stdout: IO[str] | None = None,
        without: str = "",
    ) -> None:
        """Start the command.

        Args:
            arguments: What follows ``tarry``.
            streams: The file descriptors of its standard input, output and error.
            folder: Its working directory.
            environment: Its whole environment.
            stdout: The other end of a pipe that is its standard output.
            without: A library that cannot be imported.
        """
        own = [_Stream(each) for each in streams]
        self._process = _forking.Process(
            target=partial(_without, without, _run) if without else _run,
            args=(list(arguments), own, str(folder), dict(environment)),
            daemon=True,
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout = stdout

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        self._process.join(seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("tarry", seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Stream:
    """A file descriptor that a process is started with."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _handed_over, (DupFd(self._number),)


def _handed_over(stream: Any) -> int:
    number: int = stream.detach()
    return number


def _without(library: str, run: Callable[..., None], *arguments: Any) -> None:
    """Become the command, in a forked process that cannot import a library."""
    for name in [name for name in sys.modules if name.startswith(("tarry.", f"{library}."))]:
        del sys.modules[name]
    sys.modules[library] = None  # type: ignore[assignment]
    run(*arguments)


def _run(arguments: list[str], streams: list[int], folder: str, environment: dict[str, str]) -> None:
    """Become the command, in a forked process."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in {*streams}:
        os.close(stream)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 to the end
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # that of the server
    sys.argv = ["tarry", *arguments]
    try:
        from tarry.cli import main

        main()
    finally:
        atexit._run_exitfuncs()  # which `multiprocessing` leaves out


def stop_server() -> None:
    """End the server that forks the commands; processes that they have left behind go on, and are found."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        os.waitpid(server._forkserver_pid, 0)
        server._forkserver_pid = None


def start(
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    errors: IO[str] | None = None,
    pipe_bytes: int | None = None,
    without: str = "",
) -> Command:
    """Start a command without input, whose output is read from a pipe; `tests.processes.end` ends it.

    Args:
        arguments: What follows ``tarry``.
        folder: Its working directory.
        environment: Its whole environment; without one, that of the tests.
        errors: The file for its standard error; without one, it is part of the output.
        pipe_bytes: The size of the pipe: the command waits when it is full.
        without: A library that cannot be imported, as if it were not installed.
    """
    ours, theirs = os.pipe()
    if pipe_bytes is not None and sys.platform == "linux":  # a pipe of macOS has 64 kB at most
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, pipe_bytes)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        streams = (nothing, theirs, theirs if errors is None else errors.fileno())
        given = os.environ if environment is None else environment
        return Command(arguments, streams, folder, given, stdout=os.fdopen(ours), without=without)
    finally:
        os.close(nothing)
        os.close(theirs)


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[Command]:
    """Start a command with the options of `start`, and end it at the end of the block."""
    command = start(*arguments, **options)
    try:
        yield command
    finally:
        end(command)


def rest_of(command: Command) -> list[str]:
    """Return the lines that the command prints until it ends."""
    assert command.stdout is not None
    lines = command.stdout.readlines()
    command.wait()
    return lines


def some_lines(command: Command, count: int) -> list[str]:
    """Return the first lines that the command prints; it is in the middle of its work then."""
    assert command.stdout is not None
    return [command.stdout.readline() for _ in range(count)]


class Terminal:
    """A command at a terminal, with keys that are pressed."""

    def __init__(self, *arguments: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._file, theirs = pty.openpty()
        self._command = Command(arguments, (theirs, theirs, theirs), folder, environment)
        os.close(theirs)
        self.seen = ""
        self._read = 0

    def end(self) -> None:
        end(self._command)
        os.close(self._file)

    def until(self, text: str) -> str:
        """Return the output since the last call, up to and including this text."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while text not in self.seen[self._read :]:
            assert time.monotonic() < ends_at, f"{text!r} was not printed; the output is {self.seen!r}"
            if not self._take(0.5):
                raise AssertionError(f"the command ended without {text!r}: {self.seen!r}")
        end_of_text = self.seen.index(text, self._read) + len(text)
        shown, self._read = self.seen[self._read : end_of_text], end_of_text
        return shown

    def press(self, key: str) -> None:
        os.write(self._file, key.encode())

    def send_signal(self, number: int) -> None:
        self._command.send_signal(number)

    def exit_code(self) -> int:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while self._take(0.5):
            assert time.monotonic() < ends_at, f"the command does not end; the output is {self.seen!r}"
        return self._command.wait()

    def _take(self, seconds: float) -> bool:
        """Read more output; return whether the command still runs."""
        if select.select([self._file], [], [], seconds)[0]:
            try:
                data = os.read(self._file, 65_536)
            except OSError:
                return False
            self.seen += data.decode(errors="replace")
            return bool(data)
        return True
