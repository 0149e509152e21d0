"""Starting processes that end with this one, however it ends."""

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
"""A program that tracks the running process groups, and kills them when its input ends: when this process ends.

PR_SET_PDEATHSIG does not reach the children of a child, and exists only on Linux.
"""


class Launcher:
    """A launcher of processes, each as the leader of a session, so that it can be ended with all that it started."""

    def __init__(self) -> None:
        self._warden: subprocess.Popen[bytes] | None = None

    async def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, output: int
    ) -> asyncio.subprocess.Process:
        """Start a process with exactly this environment, and with stdout and stderr to the file ``output``."""
        self._send("")
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        self._send(f"+{process.pid}\n")
        return process

    def ended(self, process: asyncio.subprocess.Process) -> None:
        """Clean up after a process that has ended: kill the processes that it left behind."""
        signal_group(process.pid, signal.SIGKILL)
        self._send(f"-{process.pid}\n")

    def close(self) -> None:
        """Kill all processes that still run."""
        if self._warden is not None:
            self._warden.communicate()
            self._warden = None

    def _send(self, line: str) -> None:
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
        with contextlib.suppress(BrokenPipeError):  # the program was killed; this process can still end its own
            self._warden.stdin.write(line.encode())
            self._warden.stdin.flush()


def kill_marked(name: str, value: str) -> None:
    """Kill all processes with this environment variable, in any session (only on Linux)."""
    mark = f"{name}={value}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a process and all that it started, if any are left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises it for a group of zombies
        os.killpg(leader, number)
