"""A deployment of changed code while messages are in flight."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.aws import KEYS
from tests.deploy.environment import run, sam
from tests.deploy.recorder import Hold, Recorder
from tests.deploy.samples import expect, records, require
from tests.deploy.stack import Stack, wait_until

VISIBILITY_SECONDS = 35
"""For this check, a little more than the timeout of the function: MiniStack kills the functions that it updates, and
their messages come back after this time."""
SEND_EVERY_SECONDS = 0.5
NEW_CURRENCY = records("some-fail")[3]
"""Order o-3004, in a currency that the function does not know before the update."""


def check(stack: Stack, recorder: Recorder, project: Path) -> str:
    """Update the function while it handles messages, and check that none is lost; return a line about it."""
    queue, dead_letters = stack.outputs["OrdersQueueUrl"], stack.outputs["OrdersDeadLettersUrl"]
    attributes = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
    stack.client_of_queues.set_queue_attributes(QueueUrl=queue, Attributes=attributes)
    before = len(stack.messages(dead_letters))
    stack.send(queue, NEW_CURRENCY)
    wait_until("o-3004 is a dead letter", lambda: len(stack.messages(dead_letters)) == before + 1)
    accept_the_currency(project)
    sam(stack.url, "build", cwd=project)
    hold = recorder.hold(Hold("PutItem", '"u-0"'))
    stack.send(queue, order(0))
    wait_until("u-0 is being written", hold.reached.is_set)
    with producing(stack, queue) as sent:
        stack.deploy(project)
    hold.released.set()
    stack.wait_until_settled(queue)
    orders = {item["order_id"] for item in stack.table("OrdersTable")}
    expect("orders lost in the update", sorted({f"u-{number}" for number in range(len(sent) + 1)} - orders), [])
    expect("dead letters after the update", len(stack.messages(dead_letters)), before + 1)
    writes = sum('"u-0"' in json.dumps(request.body) for request in recorder.of("PutItem"))
    return f"{len(sent)} messages sent during the update, all handled; the one in flight was written {writes} times"


def check_retried_dead_letter(stack: Stack) -> str:
    """Send the dead letter back with `tarry failed retry`, and check that the new code accepts it; return a line."""
    tarry = str(Path(sys.executable).with_name("tarry"))
    where = 'body.currency = "XTS"'
    environment = {**KEYS, "AWS_ENDPOINT_URL": stack.url, "PATH": str(Path(tarry).parent)}
    run(tarry, "failed", "retry", "--stack", stack.name, "--where", where, "--force", env=environment)
    stack.wait_until_settled(stack.outputs["OrdersQueueUrl"])
    require("o-3004" in {item["order_id"] for item in stack.table("OrdersTable")}, "o-3004 is not in the table")
    left = [message.body for message in stack.messages(stack.outputs["OrdersDeadLettersUrl"])]
    expect("dead letters of o-3004", [body for body in left if "o-3004" in str(body)], [])
    return "o-3004 is in the table, and no longer a dead letter"


def accept_the_currency(project: Path) -> None:
    """Change the code of the function."""
    app = project / "functions" / "orders" / "app.py"
    known, changed = 'CURRENCIES = {"EUR", "GBP", "USD"}', 'CURRENCIES = {"EUR", "GBP", "USD", "XTS"}'
    code = app.read_text()
    require(known in code, f"the code of orders has no line {known}")
    app.write_text(code.replace(known, changed))


def order(number: int) -> dict[str, Any]:
    """Return the first shipped order under an id of its own."""
    first = records("orders")[0]
    return {**first, "body": json.dumps({**json.loads(first["body"]), "order": f"u-{number}"})}


@contextmanager
def producing(stack: Stack, queue: str) -> Iterator[list[str]]:
    """Send orders all the time, beginning with u-1, until the end of the block; yield the ids of the messages."""
    sent: list[str] = []
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(SEND_EVERY_SECONDS):
            sent.append(stack.send(queue, order(len(sent) + 1)))

    producer = threading.Thread(target=send, daemon=True)
    producer.start()
    try:
        yield sent
    finally:
        ended.set()
        producer.join()
