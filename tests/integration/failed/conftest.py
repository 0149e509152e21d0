"""Fixtures of the tests of dead letters."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from tarry.testing import Sandbox
from tests.integration.failed.motoshop import MotoShop, one_at_a_time
from tests.integration.failed.sandboxed import Gateway


@pytest.fixture
def gateway(sandbox: Sandbox) -> Gateway:
    """The handler of orders, whose dead-letter queue is orders-dlq."""
    return Gateway(sandbox)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoShop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)  # moto would wait in real time
    one_at_a_time(monkeypatch)
    with mock_aws():
        yield MotoShop(tmp_path)
