"""Consumers in the source, and receive counts and decorators that do not fit them."""

from pathlib import Path

import pytest

from tarry.tools.check.consumers import is_consumer
from tarry.tools.template import TemplateFunction

from .conftest import Find

CONSUMERS = {
    "decorated": "from tarry import consumer\n@consumer\ndef handler(message): ...",
    "decorated with settings": "from tarry import batch_consumer as b\n@b(max_attempts=3)\ndef handler(batch): ...",
    "decorated by the module": "import tarry\n@tarry.consumer()\nasync def handler(message): ...",
    "assigned": "from tarry import consumer\ndef work(message): ...\nhandler = consumer(work)",
    "changed": "from tarry import consumer\n@consumer\ndef work(message): ...\nhandler = work.replace(max_attempts=2)",
    "decorated by a preset": (
        "from functools import partial\nimport tarry as t\nours = partial(t.consumer, max_attempts=3)\n"
        "@ours()\ndef handler(message): ..."
    ),
    "called by the handler": (
        "from tarry import consumer\n@consumer\ndef work(message): ...\n"
        "def handler(event, context):\n    return work(event, context)"
    ),
    "imported": "from shared.orders import work as handler",
    "imported from a package": "from shared import handler",
    "conditional": "try:\n    from shared import handler\nexcept ImportError:\n    raise",
}
OTHERS = {
    "plain": "def handler(event, context): return event",
    "one that only sends": "from tarry import Queue\ndef handler(event, context): Queue('q').send(event)",
    "another library's consumer": "from kafka import consumer\n@consumer\ndef handler(event, context): ...",
    "another name": "from tarry import consumer\n@consumer\ndef other(message): ...\ndef handler(event, context): ...",
    "not here": "from elsewhere import handler",
    "circular": "from app import handler",
    "defined by itself": "handler = handler",
    "broken": "def handler(",
    "missing": "",
}


@pytest.mark.parametrize("case", [*CONSUMERS, *OTHERS])
def test_the_source_tells_whether_a_handler_is_a_consumer(tmp_path: Path, case: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "__init__.py").write_text("from .orders import work as handler")
    (shared / "orders.py").write_text("from tarry import consumer\n@consumer\ndef work(message): ...")
    (tmp_path / "app.py").write_text({**CONSUMERS, **OTHERS}[case])
    function = TemplateFunction("F", "F", "arn:aws:lambda:us-east-1:123456789012:function:F", tmp_path, "app.handler")
    assert is_consumer(function) is (case in CONSUMERS)


FIFO = """
FifoFunction:
  Type: AWS::Serverless::Function
  Properties:
    Runtime: python3.13
    CodeUri: fifo
    Handler: app.handler
    Layers: ['arn:aws:lambda:us-east-1:1:layer:with-tarry:3']
    Role: arn:aws:iam::123456789012:role/fifo
    Events:
      Entries:
        Type: SQS
        Properties: {Queue: !GetAtt Ledger.Arn, BatchSize: %d, FunctionResponseTypes: [ReportBatchItemFailures]}
Ledger:
  Type: AWS::SQS::Queue
  Properties:
    QueueName: ledger.fifo
    FifoQueue: true
    RedrivePolicy: {deadLetterTargetArn: !GetAtt LedgerDlq.Arn, maxReceiveCount: %d}
LedgerDlq: {Type: AWS::SQS::Queue, Properties: {QueueName: ledger-dlq.fifo, FifoQueue: true}}
"""
PROPERTIES = """
Layers: ['arn:aws:lambda:us-east-1:1:layer:with-tarry:3']
Role: arn:aws:iam::123456789012:role/orders
"""
START = "import tarry\nfrom tarry import RetryPolicy, SendAgain, consumer\n"
HANDLER = "\ndef handler(message): ...\n"

STANDARD_LOW = (
    "orders (template.yaml:18) has a maxReceiveCount of 15, below the max_attempts of 16 of OrdersFunction: a message "
    "has only 15 attempts. Set in its RedrivePolicy (2 * max_attempts + 5): maxReceiveCount: 37"
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("@consumer(max_attempts=16)", [STANDARD_LOW]),
        ("@consumer(max_attempts=15)", []),
        ("@consumer", []),
        ("PATIENT = RetryPolicy(max_attempts=16)\n@tarry.batch_consumer(policy=PATIENT)", [STANDARD_LOW]),
        ("ATTEMPTS = 16\n@consumer(max_attempts=ATTEMPTS)", [STANDARD_LOW]),
        ("from company import ATTEMPTS, PATIENT\n@consumer(max_attempts=ATTEMPTS)", []),
        ("from company import PATIENT\n@consumer(policy=PATIENT)", []),
        ("MORE = {}\n@consumer(max_attempts=16, **MORE)", []),
        ("@consumer(max_attempts=16, on_failure={'orders': [SendAgain('again')]})", []),
    ],
)
def test_max_attempts_above_the_max_receive_count_is_found_if_it_is_certain(
    find: Find, code: str, expected: list[str]
) -> None:
    findings = find({"src/app.py": START + code + HANDLER}, PROPERTIES)
    assert [f"{each.text} {each.snippet}" for each in findings] == expected


def with_default_attempts(batch: str = "") -> str:
    return (
        "FifoFunction consumes ledger.fifo with the default max_attempts of 5: with the default delay of 30 s, an "
        "outage of more than 2 minutes dead-letters the first messages of each group, and the messages behind them "
        f"run. Set {batch}max_attempts for the longest outage (40 for 15 minutes). "
    )


SHARED = with_default_attempts("BatchSize: 1, so that receives behind a failing message use up no attempts, and ")
FIFO_ONE_LOW = (
    "ledger.fifo (template.yaml:37) has a maxReceiveCount of 15, below the max_attempts of 40 of FifoFunction: a "
    "message has only 15 attempts. Set in its RedrivePolicy (2 * max_attempts + 5): maxReceiveCount: 85"
)


def fifo_low(count: int, wanted: int) -> str:
    return (
        f"ledger.fifo (template.yaml:37) has a maxReceiveCount of {count}, below BatchSize * max_attempts + 5 of "
        "FifoFunction: SQS counts a receive for each message behind a failed one, so a message can be dead-lettered "
        f"with attempts left. Set in its RedrivePolicy: maxReceiveCount: {wanted}"
    )


@pytest.mark.parametrize(
    ("batch_size", "count", "code", "expected"),
    [
        (10, 54, "@consumer", [SHARED, fifo_low(54, 55)]),
        (10, 55, "@consumer", [SHARED]),
        (10, 15, "@consumer(max_attempts=40)", [fifo_low(15, 405)]),
        (10, 405, "@consumer(max_attempts=40)", []),
        (1, 15, "@consumer(max_attempts=40)", [FIFO_ONE_LOW]),
        (1, 10, "@consumer", [with_default_attempts()]),
        (10, 3, "def consumer(handler): return handler\n@consumer", []),
    ],
)
def test_on_fifo_the_batch_size_counts_as_well(
    find: Find, batch_size: int, count: int, code: str, expected: list[str]
) -> None:
    code = code if "def consumer" in code else START + code
    files = {"src/app.py": "def handler(event, context): ...", "fifo/app.py": code + HANDLER}
    findings = find(files, PROPERTIES, FIFO % (batch_size, count))
    assert [f"{each.text} {each.snippet}" for each in findings] == expected
    assert {each.rule for each in findings} <= {"W9004"}


def test_a_decorator_of_powertools_that_fails_above_a_consumer_is_named_with_its_line(find: Find) -> None:
    """But not one on another function."""
    code = """
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.data_classes import SQSEvent, event_source
from aws_lambda_powertools.utilities.idempotency import idempotent_function as once
from tarry import consumer

logger = Logger()
paid_once = once(data_keyword_argument="message")

@once(data_keyword_argument="order")
def charge(order): ...

@logger.inject_lambda_context
@event_source(data_class=SQSEvent)
@paid_once
@consumer
def handler(message): ...
"""
    files = {"src/app.py": code, "src/requirements.txt": "aws-lambda-powertools"}
    assert [each.text for each in find(files, PROPERTIES) if each.rule == "W9005"] == [
        "@event_source is above the consumer of OrdersFunction (src/app.py:14): it accepts only functions, so the "
        "import fails. Call the consumer from a function, and decorate that.",
        "@idempotent_function is above the consumer of OrdersFunction (src/app.py:15): it takes its data as a keyword "
        "argument, which Lambda does not pass, so every invocation fails, and SQS moves all messages to the "
        "dead-letter queue without a failure record. Put @idempotent_function on a function that the handler calls.",
    ]
