"""Starts processes of which none is left when this one has ended, however it ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

WARDEN = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""Knows the groups that live, and kills them when its input ends: with the process that started them, at the latest.

Linux has PR_SET_PDEATHSIG for it, which spares the children's children, and macOS has nothing.
"""


class Launcher:
    """Starts each process as the leader of a session of its own, so that it can be ended with all that it started."""

    def __init__(self) -> None:
        self._warden: subprocess.Popen[bytes] | None = None

    async def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, output: int
    ) -> asyncio.subprocess.Process:
        """A process with this environment and no other, whose stdout and stderr both are the file ``output``."""
        self._tell("")
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        self._tell(f"+{process.pid}\n")
        return process

    def ended(self, process: asyncio.subprocess.Process) -> None:
        """It has ended, and been waited for; what it started and left behind ends now."""
        signal_group(process.pid, signal.SIGKILL)
        self._tell(f"-{process.pid}\n")

    def close(self) -> None:
        """Ends whatever still lives."""
        if self._warden is not None:
            self._warden.communicate()
            self._warden = None

    def _tell(self, line: str) -> None:
        if self._warden is None:
            command = [sys.executable, "-I", "-S", "-c", WARDEN]
            self._warden = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._warden.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: this process can still end its own
            self._warden.stdin.write(line.encode())
            self._warden.stdin.flush()


def kill_marked(name: str, value: str) -> None:
    """Kill all processes with this environment variable, in whatever session, where the system tells (Linux)."""
    mark = f"{name}={value}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it is over, or somebody else's
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a process and all that it started; nothing if none of them is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS answers so for a group of zombies
        os.killpg(leader, number)
