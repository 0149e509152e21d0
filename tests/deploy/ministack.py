"""MiniStack as a process of its own, and the requests that functions make to it."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.runtime import link_packages
from tests.deploy.aws import ACCOUNT
from tests.deploy.environment import interpreter
from tests.deploy.recorder import Recorder
from tests.leftovers import MARK
from tests.network import free_port
from tests.processes import started

SERVER = Path(__file__).with_name("server.py")
START_SECONDS = 60.0
"""The limit of a start, which takes half a second on an idle machine."""


@dataclass(frozen=True)
class MiniStack:
    """A running MiniStack. It checks the rights of the functions' roles; the caller may do everything."""

    recorder: Recorder
    log: Path
    url_without_tls: str
    """Where requests do not seem to come over TLS."""

    @property
    def url(self) -> str:
        return self.recorder.url


@contextmanager
def running(folder: Path) -> Iterator[MiniStack]:
    """Run MiniStack until the end of the block, with its log and the code of the functions in the empty `folder`."""
    python = interpreter()
    translator = folder / "translator"
    translator.mkdir(parents=True)
    link_packages(translator, "aws-sam-translator")
    (folder / "tmp").mkdir()
    log, port = folder / "ministack.log", free_port()
    url = f"http://127.0.0.1:{port}"
    with Recorder(port) as recorder, log.open("wb") as output:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": "127.0.0.1",
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            "AUTH": "true",
            "AWS_ENDPOINT_URL": recorder.url,  # for the functions
            MARK: os.environ.get(MARK, ""),
        }
        # -P: without the folder of the script, whose modules are not MiniStack's.
        command = [str(python), "-P", str(SERVER), str(translator)]
        streams = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output}
        with started(command, env=environment, cwd=folder, **streams) as process:
            _wait_until_ready(process, url, log)
            yield MiniStack(recorder, log, url)


def _wait_until_ready(process: "subprocess.Popen[str]", url: str, log: Path) -> None:
    ends_at = time.monotonic() + START_SECONDS
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > ends_at:
            reason = "did not start in time" if process.poll() is None else f"ended with code {process.returncode}"
            raise RuntimeError(f"MiniStack {reason}:\n{log.read_text()}")
        time.sleep(0.05)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_ministack/health", timeout=5):
            return True
    except OSError:
        return False
