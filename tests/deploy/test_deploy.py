"""The short form of `make deploy-check`: the stack in MiniStack, deployed without SAM CLI, with its waits ended."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.builds import build
from tests.deploy.__main__ import SAMPLES, Steps
from tests.deploy.checks import check_deletion
from tests.deploy.ministack import running
from tests.deploy.samples import Samples, receiving
from tests.deploy.stack import Stack

__all__ = ["build"]


@pytest.mark.skipif(sys.platform != "linux", reason="functions and layers are built for Linux")
def test_each_function_of_the_deployed_stack_works_retries_and_rejects(build: Path, tmp_path: Path) -> None:
    """All in one test, because another worker of pytest-xdist would deploy the stack again."""
    with receiving() as receiver, running(tmp_path / "ministack") as ministack:
        stack = Stack(ministack.url, "shop", {"AllowPrivateAddresses": "true"})
        stack.create(build)
        samples = Samples(stack, ministack.recorder, receiver)
        samples.send()
        samples.wait("orders", "ledger", "webhooks")
        samples.check_orders()
        samples.check_ledger()
        samples.check_digest()
        samples.check_webhooks()
        samples.check_rights()
        samples.check_tls(ministack.url_without_tls)
        check_deletion(stack, stack.delete)


def test_a_step_is_not_run_if_the_step_that_it_needs_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> str:
        raise AssertionError("2 messages are not settled")

    steps = Steps()
    steps.take("Deploy", lambda: "CREATE_COMPLETE")
    steps.take(SAMPLES, fail, needs="Deploy")
    steps.take("Check orders", fail, needs=SAMPLES)
    steps.take("Check what needs the orders", fail, needs="Check orders")
    lines = ["CREATE_COMPLETE", "FAILED: 2 messages are not settled", f"not run: needs {SAMPLES}"]
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[1::2]][:3] == lines
    assert [result.outcome for result in steps.results] == ["ok", "FAILED", "not run", "not run"]
    assert steps.summary() == "1 of 4 steps failed, 2 not run in 0 s"


def test_mappings_are_enabled_again_after_an_error_and_rights_need_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = []
    function = SimpleNamespace(
        list_event_source_mappings=lambda: {"EventSourceMappings": [{"UUID": "1"}]},
        update_event_source_mapping=lambda UUID, Enabled: enabled.append(Enabled),
    )
    monkeypatch.setattr(Stack, "client", lambda *_: function)
    stack = Stack("http://127.0.0.1:1", "shop")
    with pytest.raises(KeyError), stack.stopped():
        raise KeyError
    assert enabled == [False, True]
    samples = Samples(stack, cast("Any", SimpleNamespace(requests=[])), cast("Any", None))
    with pytest.raises(AssertionError, match="no function made a request"):
        samples.check_rights()
