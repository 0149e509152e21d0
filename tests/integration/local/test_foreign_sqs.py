"""A mapping on an SQS that is not ours: moto's server, which goes away and comes back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends

from tarry.local.aws import foreign
from tarry.local.aws.client import sqs_client
from tarry.local.aws.foreign import ForeignSqs
from tarry.simulator import mapping
from tarry.simulator.asyncio_scheduler import AsyncioScheduler
from tarry.simulator.history import History
from tarry.simulator.invocations import InvocationResult
from tarry.simulator.mapping import EventSourceMapping
from tarry.simulator.mapping_settings import MappingSettings
from tarry.template.model import TemplateQueue
from tarry.tooling.errors import UsageError
from tests.network import free_port
from tests.wire import ACCOUNT, arn

HOST = "127.0.0.1"
QUEUES = [
    TemplateQueue("orders", arn("orders"), attributes={"VisibilityTimeout": "60"}, dead_letter_arn=arn("dead")),
    TemplateQueue("dead", arn("dead")),
]


class Moto:
    """moto's server on one port; what it holds is the process's, and outlives a stop."""

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


class Site:
    """An SQS, the mapping of ``orders``, and a function that takes what comes."""

    def __init__(self, moto: Moto, queues: list[TemplateQueue]) -> None:
        self.timeline = AsyncioScheduler()
        self.history = History(lambda: self.timeline.now)
        self.notes: list[str] = []
        self.sqs = ForeignSqs(moto.client, queues, self.timeline, self.history, self.notes.append)
        self.handled: list[str] = []
        self.mapping: EventSourceMapping | None = None

    async def open(self) -> None:
        await self.sqs.ready()
        settings = MappingSettings(self.sqs.arns["orders"], "handle", queue_visibility_seconds=3)
        port = self.sqs.port(settings)
        self.mapping = EventSourceMapping(self.timeline, port, self, self.history, settings)
        self.mapping.start()

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None]) -> None:
        self.handled += [record["body"] for record in event["Records"]]
        self.timeline.after(0.001, partial(done, InvocationResult("returned")))

    def happened(self, what: str) -> list[str]:
        return [event.fields["delivery_id"] for event in self.history.events if event.what == what]


async def until(condition: Callable[[], object], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 it is threads that are waited for
            await asyncio.sleep(0.01)


def send(client: Any, *bodies: str) -> None:
    for body in bodies:
        client.send_message(QueueUrl=client.get_queue_url(QueueName="orders")["QueueUrl"], MessageBody=body)


def play(moto: Moto, story: Callable[[Site], Awaitable[None]], queues: list[TemplateQueue] = QUEUES) -> Site:
    async def whole() -> Site:
        site = Site(moto, queues)
        try:
            await story(site)
        finally:
            if site.mapping is not None:
                site.mapping.stop()
            await site.sqs.close()
        return site

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(mapping, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(foreign, "POLL_SECONDS", 1)


@pytest.fixture
def moto() -> Iterator[Moto]:
    server = Moto()
    yield server
    server.stop()
    server.forget()


def attributes(moto: Moto, queue: str) -> dict[str, str]:
    url = moto.client.get_queue_url(QueueName=queue)["QueueUrl"]
    told: dict[str, str] = moto.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return told


def test_an_sqs_that_goes_away_is_waited_for_and_nothing_is_lost(moto: Moto) -> None:  # SPEC N1
    async def story(site: Site) -> None:
        await site.open()
        send(moto.client, "before")
        await until(lambda: site.happened("deleted"))
        moto.stop()
        await until(lambda: any("waiting for it" in note for note in site.notes))
        await asyncio.sleep(0.3)  # it is asked again meanwhile, in vain
        moto.start()
        send(moto.client, "after")
        await until(lambda: len(site.happened("deleted")) == 2)

    moto.start()
    site = play(moto, story)
    assert site.handled == ["before", "after"]
    assert site.happened("received") == site.happened("deleted")
    where = f"SQS at http://{HOST}:{moto.port}"
    assert site.notes[1:] == [f"{where} does not answer: waiting for it", f"{where} is back"]


def test_an_sqs_that_comes_back_empty_gets_its_queues_again(moto: Moto) -> None:
    async def story(site: Site) -> None:
        await site.open()
        moto.stop()
        moto.forget()
        moto.start()
        made = f"made at http://{HOST}:{moto.port}: orders, dead"
        await until(lambda: site.notes.count(made) == 2)
        send(moto.client, "again")
        await until(lambda: site.happened("deleted"))

    moto.start()
    site = play(moto, story)
    assert site.handled == ["again"]
    told = attributes(moto, "orders")
    assert told["VisibilityTimeout"] == "60"
    assert f'"deadLetterTargetArn": "{arn("dead")}"' in told["RedrivePolicy"]


def test_an_sqs_that_is_not_there_yet_is_waited_for(moto: Moto) -> None:
    async def story(site: Site) -> None:
        opening = asyncio.ensure_future(site.open())
        await until(lambda: site.notes)
        moto.start()
        await opening
        send(moto.client, "first")
        await until(lambda: site.happened("deleted"))

    site = play(moto, story)
    assert site.handled == ["first"]
    assert site.notes[0].endswith("does not answer: waiting for it")


def test_a_queue_that_somebody_else_has_made_is_left_as_it_is(moto: Moto) -> None:
    moto.start()
    moto.client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "77"})
    site = play(moto, lambda site: site.sqs.ready())
    assert site.notes == [f"made at http://{HOST}:{moto.port}: dead"]
    told = attributes(moto, "orders")
    assert told["VisibilityTimeout"] == "77"
    assert "RedrivePolicy" not in told


def test_what_a_poll_brings_after_the_end_goes_back_at_once(moto: Moto) -> None:
    async def story(site: Site) -> None:
        await site.open()
        await asyncio.sleep(0.2)
        closing = asyncio.ensure_future(site.sqs.close())
        await asyncio.sleep(0)
        await asyncio.to_thread(send, moto.client, "late")
        await closing

    moto.start()
    site = play(moto, story)
    assert site.handled == []
    assert attributes(moto, "orders")["ApproximateNumberOfMessages"] == "1"


def test_what_sqs_refuses_of_the_queues_is_said(moto: Moto) -> None:
    moto.start()
    wrong = TemplateQueue("orders!", arn("orders!"))
    with pytest.raises(UsageError, match=f"SQS at http://{HOST}:{moto.port} cannot be used: "):
        play(moto, lambda site: site.sqs.ready(), [wrong])
