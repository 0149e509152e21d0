from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from tests.records import Context, event, failed
from tests.wire import Queue, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table

FUNCTIONS = Path(__file__).parents[3] / "functions"


def deliver(app: ModuleType, *records: dict[str, Any]) -> list[str]:
    """Run the handler on a batch; return the ids of the messages reported as failed."""
    return failed(app.handler(event(*records), Context()))


def dead(wire: Wire) -> list[tuple[str, str]]:
    """Return the reason and the text of each dead letter."""
    return [(each["failure"]["reason"], each["failure"]["message"]) for each in wire.envelopes()]


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mock AWS in this process, without any resources."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        yield


@pytest.fixture
def wire() -> Iterator[Wire]:
    queues = {name: Queue(f"{name}-dlq", max_receive_count=21) for name in ("orders", "scans", "webhooks")}
    with Wire(queues={**queues, "ledger.fifo": Queue("ledger-dlq.fifo", max_receive_count=405)}) as wire:
        yield wire


@pytest.fixture
def create_table() -> Callable[[str, str], Table]:
    """Provide a function that makes a table with this name and key."""

    def create(name: str, key: str) -> Table:
        return boto3.resource("dynamodb").create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        )

    return create


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Provide a function that imports the `app.py` of a function again with its modules, as a cold start does."""

    def load_function(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(FUNCTIONS / name)
        for module_of_function in (FUNCTIONS / name).glob("*.py"):
            monkeypatch.delitem(sys.modules, module_of_function.stem, raising=False)
        spec = importlib.util.spec_from_file_location(f"{name}_app", FUNCTIONS / name / "app.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    before = set(sys.modules)
    yield load_function
    for imported in set(sys.modules) - before:
        if (getattr(sys.modules[imported], "__file__", None) or "").startswith(str(FUNCTIONS)):
            del sys.modules[imported]
