"""`tarry local --endpoint-url` with an SQS that starts later, stops, and comes back."""

import logging
import signal
from collections.abc import Iterator
from copy import copy

import pytest
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends

from tests.network import free_port

from .conftest import Project
from .process import LocalProcess


class RestartingMoto:
    """A moto server that can be restarted; its messages survive in this process."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: ThreadedMotoServer | None = None

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Stop the server; current polls receive no messages."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        for backend in sqs_backends["123456789012"].values():
            for name, queue in list(backend.queues.items()):
                backend.queues[name] = copy(queue)
                queue._messages = []

    def end_waits(self) -> None:
        """Make all messages visible, as if their visibility timeouts had ended."""
        for backend in sqs_backends["123456789012"].values():
            for queue in backend.queues.values():
                for message in queue._messages:
                    message.visible_at = 0


@pytest.fixture
def moto(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestartingMoto]:
    monkeypatch.delenv("AWS_PROFILE")  # moto would use it
    for backend in sqs_backends["123456789012"].values():
        backend.reset()
    moto = RestartingMoto()
    yield moto
    moto.stop()


def test_no_message_is_lost_when_sqs_starts_later_and_is_restarted(project: Project, moto: RestartingMoto) -> None:
    """The visibility timeouts are longer than the test: messages become visible only when the test makes them."""
    project.edit("plain/app.py", 'os.environ["QUEUE"]', 'os.environ["AWS_ENDPOINT_URL"]')
    project.edit("template.yaml", "Timeout: 2", "Timeout: 900")  # of the functions and of visibility
    local = LocalProcess(project.folder, endpoint_url=moto.url)
    local.wait("does not answer: waiting for it")
    moto.start()
    local.wait(f"created at {moto.url}: ")
    local.wait("Waiting for messages in jobs")
    ids = [local.send("jobs", '{"fail": 1}') for _ in range(3)]
    local.wait(r"WAITING_RETRY", times=3)
    moto.stop()
    local.wait("does not answer: waiting for it", times=2)
    moto.end_waits()
    moto.start()
    ids += [local.send("jobs", "{}") for _ in range(3)]
    local.until(lambda: all(local.timeline(each)[-1:] == ["COMMITTED"] for each in ids), "all messages committed")
    *before, second, done = local.states(ids[0])
    assert before == ["READY", "IN_FLIGHT 1", "WAITING_RETRY  (reported as failed)"]
    assert second == "IN_FLIGHT 2"
    assert done == "COMMITTED"
    local.until(lambda: local.depth("jobs") == 0, "an empty queue")
    assert f"handled by plain Plain {moto.url}" in local.text
    assert local.end(signal.SIGINT) == 0
    assert local.left() == []
