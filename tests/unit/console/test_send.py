"""The form that sends a message."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.console.access import WatchedQueue
from tarry.tools.console.security import READ_ONLY
from tarry.tools.console.send import MessageForm, sample_files, sample_form
from tests.consoles import Guest, console_at, visited
from tests.scanned import HOSTILE
from tests.served import Served
from tests.served import served as served_sqs


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


@pytest.fixture(scope="module")
def sqs() -> Iterator[Served]:
    with served_sqs() as found:
        found.queue("orders")
        found.queue("jobs.fifo")
        yield found


@contextmanager
def visiting(sqs: Served, **settings: Any) -> Iterator[Guest]:
    queues = [WatchedQueue(sqs.queue(name)) for name in ("orders", "jobs.fifo")]
    with visited(console_at(sqs.url, queues, **settings)) as guest:
        yield guest


def test_a_message_is_sent_with_all_its_fields_and_the_form_keeps_what_was_typed(sqs: Served, tmp_path: Path) -> None:
    events(tmp_path)
    template: Any = SimpleNamespace(path=tmp_path / "template.yaml")
    with visiting(sqs, can_write=True, template=template) as guest:
        page = guest.page("/send?sample=jobs.json:2")
        assert ("<script>document" in page, "&lt;script&gt;" in page) == (False, True)
        fields = {"queue": "jobs.fifo", "body": HOSTILE[5:], "group": "g", "attributes": "a=north"}
        answer = guest.post("/send", fields)
        assert guest.post("/send", {"queue": "orders", "body": "late", "delay": "90"}).status == 200
    assert (answer.status, "Sent to jobs.fifo: <a" in answer.text) == (200, True), answer.text
    assert 'value="g"' in answer.text
    [message] = sqs.client.receive_message(QueueUrl=sqs.queue("jobs.fifo"), MessageAttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageAttributes"]["a"]["StringValue"]) == (HOSTILE[5:], "north")
    attributes = sqs.client.get_queue_attributes(QueueUrl=sqs.queue("orders"), AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"


def test_a_message_that_sqs_would_refuse_is_not_sent_and_the_reason_is_shown(sqs: Served) -> None:
    before = len(sqs.events("sent"))
    with visiting(sqs, can_write=True) as guest:
        for fields, text in (
            ({"body": ""}, "The body is empty: SQS takes 1 character or more."),
            ({"body": "x" * 1_048_577}, "The message is 1048577 bytes"),
            ({"body": "a", "delay": "soon"}, "The delay must be a number of seconds, got &#39;soon&#39;."),
            ({"body": "a", "delay": "43201"}, "43201"),
            ({"body": "a", "attributes": "x"}, "&#39;x&#39; is not an attribute"),
            ({"body": "a", "queue": "jobs.fifo"}, "group"),
        ):
            answer = guest.post("/send", {"queue": "orders", **fields})
            assert (answer.status, "The message was not sent. " in answer.text, text in answer.text) == (
                400, True, True,
            ), text  # fmt: skip
        answer = guest.post("/send", {"queue": "others", "body": "a"})
        assert (answer.status, "no queue &#39;others&#39;" in answer.text) == (404, True)
    with visiting(sqs) as guest:
        assert '<button class="main" disabled>' in guest.page("/send")
        answer = guest.post("/send", {"queue": "orders", "body": "a"})
        assert (answer.status, READ_ONLY in answer.text) == (403, True)
    assert len(sqs.events("sent")) == before
