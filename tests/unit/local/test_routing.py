"""The queue that each record of an event is sent to."""

from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.plan import routed
from tarry.tools.local.samples import Sample
from tarry.tools.template import Template, TemplateMapping, TemplateQueue

ARN = "arn:aws:sqs:us-east-1:123456789012:"


def template(*queues: str) -> Template:
    """A template with a function for each queue; the logical id of a queue is its name as a title."""
    return Template(
        path=Path("template.yaml"),
        region="us-east-1",
        queues={name: TemplateQueue(name, ARN + name, name.partition(".")[0].title()) for name in queues},
        functions={},
        mappings=tuple(TemplateMapping(f"{name}Mapping", ARN + name, "Worker") for name in queues),
        backing={},
    )


def route(*records: str, to: Template, queue: str | None = None, group: str | None = None) -> tuple[list[str], str]:
    """Return the queues of records, and the notes."""
    notes: list[str] = []
    samples = [Sample(number, name, "{}", group_id=group) for number, name in enumerate(records, start=1)]
    found = routed(samples, to, queue, "event.json", notes.append)
    return [each.queue for each in found], " ".join(notes)


def test_a_record_stays_with_its_queue_by_name_or_logical_id() -> None:
    assert route("orders", "Scans", to=template("orders", "scans")) == (["orders", "scans"], "")


def test_records_of_other_queues_go_to_the_only_queue_with_a_function_and_a_note_names_both() -> None:
    queues, notes = route("MyQueue", "", "MyQueue", "orders", to=template("orders"))
    assert queues == ["orders"] * 4
    assert notes == (
        "Sending 2 records to orders: no function here consumes MyQueue. Sending record 2 to orders: no queue is named."
    )


def test_records_of_other_queues_go_to_the_named_queue() -> None:
    assert route("", "scans", to=template("orders", "scans"), queue="orders")[0] == ["orders", "scans"]
    assert route("x", to=template("orders", "scans"), queue="Scans")[0] == ["scans"]


def test_a_record_without_a_group_gets_one_for_a_fifo_queue() -> None:
    event, fifo = [Sample(1, "", "{}"), Sample(2, "", "{}", group_id="own")], template("entries.fifo")
    assert [each.group_id for each in routed(event, fifo, None, "event.json", str)] == ["sample", "own"]


@pytest.mark.parametrize(
    ("record", "queue", "text"),
    [
        ("x", None, "event.json: record 1 is for queue x, which no function in template.yaml consumes: name the queue"),
        ("", None, r"record 1 names no queue: name the queue to send it to \(--queue NAME\); .*: orders, scans"),
        ("", "x", r"no function in template.yaml consumes x \(--queue\); queues with a function: orders, scans"),
    ],
)
def test_a_record_whose_queue_is_not_clear_is_refused(record: str, queue: str | None, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        route(record, to=template("orders", "scans"), queue=queue)
