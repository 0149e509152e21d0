"""A mapping on an external SQS: a moto server that stops and comes back."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends

from tarry.failed.usage import UsageError
from tarry.tools.local.aws import foreign
from tarry.tools.local.aws.client import sqs_client
from tarry.tools.local.aws.foreign import ForeignSqs
from tarry.tools.simulator import mapping
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.template import TemplateMapping, TemplateQueue
from tests.network import free_port
from tests.wire import ACCOUNT, arn

from .conftest import Project
from .process import LocalProcess

HOST = "127.0.0.1"
QUEUES = [
    TemplateQueue("orders", arn("orders"), attributes={"VisibilityTimeout": "60"}, dead_letter_arn=arn("dead")),
    TemplateQueue("dead", arn("dead")),
]


class MotoServer:
    """A moto server on a fixed port; its queues survive a stop in this process."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.port = free_port()
        self.client = sqs_client(f"http://{HOST}:{self.port}")
        self._server: ThreadedMotoServer | None = None
        self.forget()

    def start(self) -> None:
        self._server = ThreadedMotoServer(HOST, self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def forget(self) -> None:
        for backend in sqs_backends[ACCOUNT].values():
            backend.reset()


class ForeignSite:
    """An external SQS, the mapping of ``orders``, and a function that accepts all messages."""

    def __init__(self, moto: MotoServer, queues: list[TemplateQueue]) -> None:
        self.scheduler = AsyncioScheduler()
        self.history = History(lambda: self.scheduler.now)
        self.notes: list[str] = []
        self.sqs = ForeignSqs(moto.client, queues, self.scheduler, self.history, self.notes.append)
        self.handled: list[str] = []
        self.mapping: EventSourceMapping | None = None

    async def open(self) -> None:
        await self.sqs.ready()
        settings = MappingSettings(TemplateMapping("", self.sqs.arns["orders"], "handle"), queue_visibility_seconds=3)
        port = self.sqs.port(settings)
        self.mapping = EventSourceMapping(self.scheduler, port, self, self.history, settings)
        self.mapping.start()

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None], qualifier: str = "") -> None:
        self.handled += [record["body"] for record in event["Records"]]
        self.scheduler.after(0.001, partial(done, InvocationResult("returned")))

    def delivery_ids(self, what: str) -> list[str]:
        return [event.fields["delivery_id"] for event in self.history.events if event.what == what]


async def until(condition: Callable[[], object], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 it waits for threads
            await asyncio.sleep(0.01)


def send(client: Any, *bodies: str) -> None:
    for body in bodies:
        client.send_message(QueueUrl=client.get_queue_url(QueueName="orders")["QueueUrl"], MessageBody=body)


def play(
    moto: MotoServer, scenario: Callable[[ForeignSite], Awaitable[None]], queues: list[TemplateQueue] = QUEUES
) -> ForeignSite:
    async def whole() -> ForeignSite:
        site = ForeignSite(moto, queues)
        try:
            await scenario(site)
        finally:
            if site.mapping is not None:
                site.mapping.stop()
            await site.sqs.close()
        return site

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(mapping, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(foreign, "POLL_SECONDS", 1)


@pytest.fixture
def moto() -> Iterator[MotoServer]:
    server = MotoServer()
    yield server
    server.stop()
    server.forget()


def attributes(moto: MotoServer, queue: str) -> dict[str, str]:
    url = moto.client.get_queue_url(QueueName=queue)["QueueUrl"]
    found: dict[str, str] = moto.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def test_an_sqs_that_starts_later_stops_and_comes_back_even_empty_is_waited_for(moto: MotoServer) -> None:  # SPEC N1
    where = f"http://{HOST}:{moto.port}"
    waiting, back = f"SQS at {where} does not answer: waiting for it", f"SQS at {where} is back"
    created = f"created at {where}: orders, dead"

    async def handled(site: ForeignSite, body: str, count: int) -> None:
        send(moto.client, body)
        await until(lambda: len(site.delivery_ids("deleted")) == count)

    async def scenario(site: ForeignSite) -> None:
        opening = asyncio.ensure_future(site.open())
        await until(lambda: site.notes)
        moto.start()
        await opening
        await handled(site, "first", 1)
        moto.stop()
        await until(lambda: site.notes.count(waiting) == 2)
        await asyncio.sleep(0.3)  # polls fail in the meantime
        moto.start()
        await handled(site, "after a stop", 2)
        moto.stop()
        moto.forget()
        moto.start()
        await until(lambda: site.notes.count(created) == 2)
        await handled(site, "after a loss", 3)

    site = play(moto, scenario)
    assert site.handled == ["first", "after a stop", "after a loss"]
    # On a busy machine, the last message may be sent twice, and received once more at the end.
    assert {*site.delivery_ids("deleted")} <= {*site.delivery_ids("received")}
    assert site.notes[:5] == [waiting, back, created, waiting, back]
    found = attributes(moto, "orders")
    assert found["VisibilityTimeout"] == "60"
    assert f'"deadLetterTargetArn": "{arn("dead")}"' in found["RedrivePolicy"]


def test_messages_received_after_the_close_are_released_at_once(moto: MotoServer) -> None:
    async def scenario(site: ForeignSite) -> None:
        await site.open()
        await asyncio.sleep(0.2)
        closing = asyncio.ensure_future(site.sqs.close())
        await asyncio.sleep(0)
        await asyncio.to_thread(send, moto.client, "late")
        await closing

    moto.start()
    site = play(moto, scenario)
    assert site.handled == []
    assert attributes(moto, "orders")["ApproximateNumberOfMessages"] == "1"


def test_a_queue_that_sqs_refuses_is_reported(moto: MotoServer) -> None:
    moto.start()
    wrong = TemplateQueue("orders!", arn("orders!"))
    with pytest.raises(UsageError, match=f"SQS at http://{HOST}:{moto.port} cannot be used: "):
        play(moto, lambda site: site.sqs.ready(), [wrong])


def test_the_start_and_a_changed_template_create_missing_queues_and_leave_existing_ones_alone(moto: MotoServer) -> None:
    moto.start()
    moto.client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "77"})

    async def scenario(site: ForeignSite) -> None:
        await site.sqs.ready()
        assert site.notes == [f"created at http://{HOST}:{moto.port}: dead"]
        changed = TemplateQueue("orders", arn("orders"), attributes={"VisibilityTimeout": "90"})
        queues = [changed, QUEUES[1], TemplateQueue("new", arn("new"))]
        for _ in range(2):  # the second time, as for another change
            urls = await site.sqs.check(queues)
            [text] = await site.sqs.update(queues)
        assert urls["new"].endswith("/new")
        assert site.sqs.arns["new"] == arn("new")
        assert text.startswith("Queue orders stays as it is: tarry local changes no existing queue at http://")
        found = attributes(moto, "orders")
        assert (found["VisibilityTimeout"], "RedrivePolicy" in found) == ("77", False)
        moto.stop()
        with pytest.raises(UsageError, match="cannot be used"):
            await site.sqs.check([*queues, TemplateQueue("later", arn("later"))])

    play(moto, scenario)


def test_tarry_local_waits_for_another_sqs_and_hosts_its_functions_there(
    moto: MotoServer, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visibility timeouts are longer than the test: the message becomes visible only when the test makes it."""
    monkeypatch.delenv("AWS_PROFILE")  # moto would use it
    project.edit("plain/app.py", 'os.environ["QUEUE"]', 'os.environ["AWS_ENDPOINT_URL"]')
    project.edit("template.yaml", "Timeout: 2", "Timeout: 900")  # of the functions and of visibility
    url = f"http://{HOST}:{moto.port}"
    local = LocalProcess(project.folder, endpoint_url=url)
    local.wait("does not answer: waiting for it")
    moto.start()
    local.wait(f"created at {url}: ")
    local.wait("Waiting for messages in jobs")
    sent = local.send("jobs", '{"fail": 1}')
    local.wait("WAITING_RETRY")
    for backend in sqs_backends[ACCOUNT].values():
        for message in backend.queues["jobs"]._messages if "jobs" in backend.queues else ():
            message.visible_at = 0
    local.committed(sent)
    retried = ["READY", "IN_FLIGHT 1", "WAITING_RETRY  (reported as failed)", "IN_FLIGHT 2", "COMMITTED"]
    assert local.states(sent) == retried
    local.until(lambda: local.depth("jobs") == 0, "an empty queue")
    assert f"handled by plain Plain {url}" in local.text
    assert local.end(signal.SIGINT) == 0
    assert local.left() == []
