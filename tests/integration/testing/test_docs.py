"""The examples of docs/testing.md, docs/first-steps.md and the README run, and what is shown is what is printed."""

import re
from pathlib import Path
from textwrap import indent

import pytest

from tarry import Exponential, Message, consumer
from tarry.testing import Sandbox
from tarry.testing.faults import KINDS

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "testing.md").read_text()


def blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block(beginning: str, text: str = TEXT) -> str:
    """The code block that begins so."""
    [found] = [each for each in blocks(text) if each.startswith(beginning)]
    return found


def test_the_first_example_runs(pytester: pytest.Pytester) -> None:
    first = blocks(TEXT)[0]
    assert len([line for line in first.splitlines() if line]) <= 10
    pytester.makepyfile(first)
    pytester.runpytest_inprocess("-p", "tarry.testing.plugin").assert_outcomes(passed=1)


def test_the_helpers_example_runs(pytester: pytest.Pytester) -> None:
    handler = """
from tarry import Message, consumer

@consumer
def handler(message: Message) -> None:
    if message.json().get("lines") == []:
        message.reject()
"""
    pytester.makepyfile(handler + block("from tarry.testing import lambda_context"))
    pytester.runpytest_inprocess("-p", "tarry.testing.plugin").assert_outcomes(passed=2)


def test_the_first_steps_can_be_taken(pytester: pytest.Pytester) -> None:
    text = (DOCS / "first-steps.md").read_text()
    function = pytester.mkdir("functions") / "mail"
    function.mkdir()
    (function / "app.py").write_text(block("from tarry import Message", text) + "\n\ndef send(to, text): ...\n")
    resources = indent(block("MailFunction:", text), "  ")
    template = f"Transform: AWS::Serverless-2016-10-31\nResources:\n{resources}"
    (pytester.path / "template.yaml").write_text(template)
    pytester.makepyfile(block("def test_a_mail_that_is_no_json", text))
    pytester.runpytest_inprocess("-p", "tarry.testing.plugin").assert_outcomes(passed=2)


def test_the_examples_of_the_readme_run(pytester: pytest.Pytester) -> None:
    text = (DOCS.parent / "README.md").read_text()
    stubs = "\n\nclass RateLimited(Exception): ...\n\ndef charge(order): ...\n"
    pytester.makepyfile(app=block("from tarry import Exponential", text) + stubs)
    before = "import app\n\ndef times_out(order):\n    raise TimeoutError\n\n"
    pytester.makepyfile(before + block("def test_a_gateway_that_stays_down", text))
    pytester.runpytest_inprocess("-p", "tarry.testing.plugin", "--import-mode=prepend").assert_outcomes(passed=1)


def test_the_timeline_is_what_is_printed(sandbox: Sandbox) -> None:
    @consumer(max_attempts=5, backoff=Exponential(30, 3, maximum=900, jitter="equal"))
    def handler(message: Message) -> None:
        raise TimeoutError("the gateway does not answer")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    sandbox.send("orders", {"order": 7, "total": 1350})
    report = sandbox.run()

    assert shape(f"{report}\n") == shape(block("1 DEAD_LETTERED"))
    assert len({letter.id for letter in sandbox.messages("orders-dlq")}) == 1
    assert len(sandbox.messages("orders-dlq")) == 2


def shape(text: str) -> str:
    """Without ids, times and delays, which another draw of the jitter changes."""
    return re.sub(r"message \S+|after [^,]+|for [^:]+:|\d+", "_", text)


def test_every_fault_is_in_the_table() -> None:
    table = TEXT[TEXT.index("| fault | of |") : TEXT.index("`operation` and `queue` say where")]
    told = [name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(told) == sorted(KINDS)
