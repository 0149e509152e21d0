"""Fixtures of the tests of the console."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.console.sessions import Session, session
from tests.served import served
from tests.shop import ServedShop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedShop]:
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)  # the model has all messages on one server
    with served() as sqs:
        yield ServedShop(sqs, tmp_path)


@pytest.fixture
def visitor(shop: ServedShop) -> Iterator[Session]:
    """A session of a console that may write."""
    with session(shop) as found:
        yield found
