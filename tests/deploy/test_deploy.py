"""The short form of `make deploy-check`: the stack in MiniStack, deployed without SAM CLI, with its waits ended."""

import sys
from pathlib import Path

import pytest

from tests.deploy import deletion
from tests.deploy.ministack import running
from tests.deploy.project import copy_project, make
from tests.deploy.receiver import Receiver
from tests.deploy.samples import Samples
from tests.deploy.stack import Stack


@pytest.mark.skipif(sys.platform != "linux", reason="functions and layers are built for Linux")
def test_each_function_of_the_deployed_stack_works_retries_and_rejects(tmp_path: Path) -> None:
    """All in one test, because another worker of pytest-xdist would deploy the stack again."""
    built = make(copy_project(tmp_path / "project"))
    with Receiver() as receiver, running(tmp_path / "ministack") as ministack:
        stack = Stack(ministack.url, "shop", {"AllowPrivateAddresses": "true"})
        stack.create(built)
        samples = Samples(stack, ministack.recorder, receiver)
        samples.send()
        samples.wait("orders", "ledger", "webhooks")
        samples.check_orders()
        samples.check_ledger()
        samples.check_digest()
        samples.check_webhooks()
        samples.check_rights()
        samples.check_tls(ministack.url_without_tls)
        deletion.check(stack, stack.delete)
