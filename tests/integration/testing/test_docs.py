"""The output and the lists of the pages on testing are real. Links and code: tests/acceptance/test_docs.py."""

import re
from dataclasses import fields, replace

from tarry import Exponential, Message, State, consumer
from tarry.testing import DeliveredBatch, DeliveredMessage, Realism, Sandbox
from tarry.tools.testing.faults import KINDS
from tests.pages import ROOT, Page

PAGE = Page(ROOT / "docs" / "guides" / "testing.md")
REFERENCE = Page(ROOT / "docs" / "reference" / "testing.md")


def test_the_first_example_of_the_sandbox_is_short() -> None:
    first = next(block for block in PAGE.blocks if "(sandbox)" in block.text)
    assert len([line for line in first.text.splitlines() if line]) <= 10


def test_the_result_of_deliver_on_the_page_is_its_repr() -> None:
    message = DeliveredMessage("1", "1", "{}", "handle", 1, State.COMMITTED)
    failed = replace(message, state=State.WAITING_RETRY, delay=26, why="KeyError: 'lines'")
    [shown] = [block.text for block in PAGE.blocks if block.text.startswith("<DeliveredBatch")]
    assert f"{DeliveredBatch('orders', (message, failed))!r}\n" == shown


def test_every_attribute_of_a_result_of_deliver_is_in_the_tables() -> None:
    text = REFERENCE.text[REFERENCE.text.index("## `deliver`") : REFERENCE.text.index("## Templates")]
    listed = set(re.findall(r"`(?:result|message)\.(\w+)", text))
    names = [name for kind in (DeliveredBatch, DeliveredMessage) for name in (*vars(kind), *kind.__annotations__)]
    assert listed == {name for name in names if not name.startswith("_")}


def test_the_timeline_on_the_page_is_the_one_that_is_printed(sandbox: Sandbox) -> None:
    @consumer(max_attempts=5, backoff=Exponential(30, 3, maximum=900, jitter="equal"))
    def handler(message: Message) -> None:
        raise TimeoutError("the gateway does not answer")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    sandbox.send("orders", {"order": 7, "total": 1350})
    report = sandbox.run()
    [shown] = [block.text for block in PAGE.blocks if block.text.startswith("1 DEAD_LETTERED")]
    assert shape(f"{report}\n") == shape(shown)
    assert len({dead_letter.id for dead_letter in sandbox.messages("orders-dlq")}) == 1
    assert len(sandbox.messages("orders-dlq")) == 2


def shape(text: str) -> str:
    """Return the text without ids, times, and delays, which the jitter changes."""
    return re.sub(r"message \S+|after [^,]+|for [^:]+:|\d+", "_", text)


def test_every_kind_of_fault_is_in_the_table() -> None:
    text = REFERENCE.text
    table = text[text.index("| fault | applies to |") : text.index("- `operation` and `queue` limit")]
    listed = [name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(KINDS)


def test_every_option_of_realism_is_in_the_table() -> None:
    table = REFERENCE.text[REFERENCE.text.index("| option | default |") : REFERENCE.text.index("## Checks")]
    listed = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", table, re.MULTILINE))
    defaults = {field.name: field.default for field in fields(Realism)}
    assert listed == {
        name: f"{default:g}" if name == "duplicate" else str(default) for name, default in defaults.items()
    }
