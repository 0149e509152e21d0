"""The verdicts that the sandbox records for the return value of a batch handler (SPEC A4)."""

from typing import Any

import pytest

from tarry import Batch, Retry, batch_consumer
from tarry.testing import Sandbox
from tests.sandboxes import work


@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        (lambda ids: None, ["ack", "ack"]),
        (lambda ids: "whatever", ["ack", "ack"]),
        (lambda ids: {"batchItemFailures": []}, ["ack", "ack"]),
        (lambda ids: {"batchItemFailures": [{"itemIdentifier": ids[1]}]}, ["ack", "fail"]),
        (lambda ids: {"batchItemFailures": [{"itemIdentifier": "unknown"}]}, ["fail", "fail"]),
        (lambda ids: {"batchItemFailures": [{}]}, ["fail", "fail"]),
        (lambda ids: Retry(5), ["retry", "retry"]),
        (lambda ids: ValueError("no"), ["fail", "fail"]),
    ],
)
def test_a_return_value_gives_a_verdict_on_each_message(sandbox: Sandbox, answer: Any, verdicts: list[str]) -> None:
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> Any:
        return answer([message.delivery_id for message in batch])

    work(sandbox, handler, *map(str, range(2)))
    run = sandbox.run(check=False).history.runs[0]
    assert [run.verdict(each) for each in run.messages] == verdicts
