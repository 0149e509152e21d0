"""Fixtures of the tests of dead letters."""

import pytest

from tarry.testing import Sandbox
from tests.integration.failed.sandboxed import Gateway


@pytest.fixture
def gateway(sandbox: Sandbox) -> Gateway:
    """The handler of orders, whose dead-letter queue is orders-dlq."""
    return Gateway(sandbox)
