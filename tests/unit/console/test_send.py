"""The form that sends a message."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.console.access import WatchedQueue
from tarry.tools.console.security import READ_ONLY
from tarry.tools.console.send import MessageForm, sample_files, sample_form
from tests.consoles import Visitor, console_at, visiting
from tests.scanned import HOSTILE
from tests.served import Served, served


def test_fields_become_the_arguments_of_a_send() -> None:
    form = MessageForm.of(
        {
            "queue": "orders",
            "body": "a\r\nb",
            "delay": " 90 ",
            "attributes": "a=1=2\r\nb:Number=7.50\nc:Binary=AP8=\n\n",
        }
    )
    assert form.body == "a\nb"
    assert form.delay_seconds == 90
    assert form.attribute_values == {"a": "1=2", "b": Decimal("7.50"), "c": b"\x00\xff"}
    assert MessageForm.of({}).delay_seconds is None


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("name", "'name' is not an attribute: give one attribute a line: name=text"),
        ("=1", "'=1' is not an attribute"),
        ("a=1\na=2", "the attribute 'a' is given twice"),
        ("a:Number=x", "the attribute 'a' is not a number: 'x'"),
        ("a:Binary=?", "the attribute 'a' is not base64: '?'"),
        ("a:Map=1", "the attribute 'a' has the type 'Map': give one attribute a line"),
    ],
)
def test_a_wrong_attribute_is_named(field: str, text: str) -> None:
    with pytest.raises(UsageError, match=text[:20].replace("?", r"\?")) as raised:
        _ = MessageForm.of({"attributes": field}).attribute_values
    assert text in str(raised.value)


def events(folder: Path) -> Path:
    record = {
        "body": '{"id": 1}',
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:jobs.fifo",
        "attributes": {"MessageGroupId": "g"},
        "messageAttributes": {
            "a": {"dataType": "String", "stringValue": "north"},
            "b": {"dataType": "Number.int", "stringValue": "7"},
            "c": {"dataType": "Binary", "binaryValue": "AP8="},
            "Tarry": {"dataType": "String", "stringValue": "{}"},
        },
    }
    (folder / "events").mkdir()
    (folder / "events/jobs.json").write_text(json.dumps({"Records": [record, {**record, "body": HOSTILE}]}))
    (folder / "events/s3.json").write_text('{"Records": [{"eventSource": "aws:s3"}]}')
    (folder / "events/broken.json").write_text("{")
    return folder / "events"


def test_samples_come_from_the_sqs_events_of_the_project(tmp_path: Path) -> None:
    folder = events(tmp_path)
    found = sample_files(folder)
    assert {name: [*samples] for name, samples in found.items()} == {"jobs.json": ["jobs.json:1", "jobs.json:2"]}
    form, hints = sample_form(folder, "jobs.json:1")
    assert form == MessageForm("jobs.fifo", '{"id": 1}', "g", "a=north\nb:Number=7\nc:Binary=AP8=")
    assert hints == [
        "The sample's Tarry attribute is left out: tarry writes it.",
        "The form has no types with a label, so it sends b as Number, not Number.int.",
    ]
    with pytest.raises(UsageError, match="there is no sample 'nosuch:1'"):
        sample_form(folder, "nosuch:1")
    assert sample_files(None) == sample_files(tmp_path / "nosuch") == {}


def sending(work: Callable[[Visitor, Served], Awaitable[None]], **settings: Any) -> None:
    with served() as sqs:
        names = ("orders", "jobs.fifo")
        queues = [WatchedQueue(sqs.queue(name)) for name in names]

        async def main() -> None:
            async with visiting(console_at(sqs.url, queues, **settings)) as visitor:
                await work(visitor, sqs)

        asyncio.run(main())


def test_a_message_is_sent_with_all_its_fields_and_the_form_keeps_what_was_typed(tmp_path: Path) -> None:
    events(tmp_path)
    template: Any = SimpleNamespace(path=tmp_path / "template.yaml")

    async def work(visitor: Visitor, sqs: Served) -> None:
        page = await visitor.get("/send?sample=jobs.json:2")
        assert "<script>document" not in page.text
        assert "&lt;script&gt;" in page.text
        fields = {"queue": "jobs.fifo", "body": HOSTILE[5:], "group": "g", "attributes": "a=north"}
        answer = await visitor.post("/send", fields)
        assert (answer.status, "Sent to jobs.fifo: <a" in answer.text) == (200, True), answer.text
        assert 'value="g"' in answer.text
        received = await asyncio.to_thread(
            sqs.client.receive_message, QueueUrl=sqs.queue("jobs.fifo"), MessageAttributeNames=["All"]
        )
        [message] = received["Messages"]
        assert message["Body"] == HOSTILE[5:]
        assert message["MessageAttributes"]["a"]["StringValue"] == "north"
        delayed = await visitor.post("/send", {"queue": "orders", "body": "late", "delay": "90"})
        assert delayed.status == 200
        given = {"QueueUrl": sqs.queue("orders"), "AttributeNames": ["All"]}
        attributes = await asyncio.to_thread(lambda: sqs.client.get_queue_attributes(**given)["Attributes"])
        assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"

    sending(work, can_write=True, template=template)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"body": ""}, "The body is empty: SQS takes 1 character or more."),
        ({"body": "x" * 1_048_577}, "The message is 1048577 bytes"),
        ({"body": "a", "delay": "soon"}, "The delay must be a number of seconds, got &#39;soon&#39;."),
        ({"body": "a", "delay": "43201"}, "43201"),
        ({"body": "a", "attributes": "x"}, "&#39;x&#39; is not an attribute"),
        ({"body": "a", "queue": "jobs.fifo"}, "group"),
    ],
)
def test_a_message_that_sqs_would_refuse_is_not_sent_and_the_reason_is_shown(fields: dict[str, str], text: str) -> None:
    async def work(visitor: Visitor, sqs: Served) -> None:
        answer = await visitor.post("/send", {"queue": "orders", **fields})
        assert answer.status == 400
        assert "The message was not sent. " in answer.text
        assert text in answer.text
        assert not sqs.events("sent")

    sending(work, can_write=True)


def test_a_read_only_console_sends_nothing_and_an_unknown_queue_is_refused() -> None:
    async def read_only(visitor: Visitor, sqs: Served) -> None:
        assert '<button class="main" disabled>' in (await visitor.get("/send")).text
        answer = await visitor.post("/send", {"queue": "orders", "body": "a"})
        assert (answer.status, READ_ONLY in answer.text, sqs.events("sent")) == (403, True, [])

    async def unknown(visitor: Visitor, sqs: Served) -> None:
        answer = await visitor.post("/send", {"queue": "others", "body": "a"})
        assert (answer.status, "no queue &#39;others&#39;" in answer.text) == (404, True)

    sending(read_only)
    sending(unknown, can_write=True)
