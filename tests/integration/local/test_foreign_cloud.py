"""`tarry local --endpoint-url`: an SQS that is not there yet, that goes away in the middle, and comes back."""

import logging
import signal
from collections.abc import Iterator
from copy import copy

import pytest
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends

from tests.network import free_port

from .conftest import Project
from .process import Local


class Moto:
    """moto's server. What it holds is this process's, and outlives it."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: ThreadedMotoServer | None = None

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Polls that are under way find nothing any more."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        for backend in sqs_backends["123456789012"].values():
            for name, queue in list(backend.queues.items()):
                backend.queues[name] = copy(queue)
                queue._messages = []

    def end_waits(self) -> None:
        """Show all hidden messages, as if their visibility timeouts had passed."""
        for backend in sqs_backends["123456789012"].values():
            for queue in backend.queues.values():
                for message in queue._messages:
                    message.visible_at = 0


@pytest.fixture
def moto(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    monkeypatch.delenv("AWS_PROFILE")  # moto itself would look for it
    for backend in sqs_backends["123456789012"].values():
        backend.reset()
    moto = Moto()
    yield moto
    moto.stop()


def test_nothing_is_lost_when_another_sqs_comes_late_and_is_restarted(project: Project, moto: Moto) -> None:
    """The messages are hidden for longer than a test takes: no message is shown again before the test shows it."""
    project.edit("plain/app.py", 'os.environ["QUEUE"]', 'os.environ["AWS_ENDPOINT_URL"]')
    project.edit("template.yaml", "Timeout: 2", "Timeout: 900")  # of the functions, and the visibility of the queues
    local = Local(project.folder, endpoint_url=moto.url)
    local.wait("does not answer: waiting for it")
    moto.start()
    local.wait(f"made at {moto.url}: ")
    local.wait("waits for messages to jobs")
    ids = [local.send("jobs", '{"fail": 1}') for _ in range(3)]
    local.wait(r"WAITING_RETRY", times=3)
    moto.stop()
    local.wait("does not answer: waiting for it", times=2)
    moto.end_waits()
    moto.start()
    ids += [local.send("jobs", "{}") for _ in range(3)]
    local.until(lambda: all(local.story(each)[-1:] == ["COMMITTED"] for each in ids), "all of them done")
    *before, again, done = local.states(ids[0])
    assert before == ["READY", "IN_FLIGHT 1", "WAITING_RETRY  (reported as failed)"]
    assert again == "IN_FLIGHT 2"
    assert done == "COMMITTED"
    local.until(lambda: local.depth("jobs") == 0, "an empty queue")
    assert f"handled by plain Plain {moto.url}" in local.text
    assert local.end(signal.SIGINT) == 0
    assert local.left() == []
