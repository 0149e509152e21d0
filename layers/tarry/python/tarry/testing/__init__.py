"""Tests of consumers: queues and functions in virtual time, and small helpers.

    def test_an_order_is_tried_again(sandbox):
        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders")
        order = sandbox.send("orders", {"id": 1})
        report = sandbox.run()
        assert report.state(order) == "COMMITTED"

``sandbox`` is a pytest fixture, available as soon as tarry is installed with its extra ``testing``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarry.tools.simulator.sqs import Realism
    from tarry.tools.testing.delivering import (
        DeliveredBatch,
        DeliveredMessage,
        deliver,
        lambda_context,
        message,
        sqs_event,
    )
    from tarry.tools.testing.faults import Fault, Faults
    from tarry.tools.testing.messages import QueuedMessage
    from tarry.tools.testing.report import Report
    from tarry.tools.testing.sandbox import Sandbox
    from tarry.tools.testing.timeline import Transition

__all__ = [
    "DeliveredBatch",
    "DeliveredMessage",
    "Fault",
    "Faults",
    "QueuedMessage",
    "Realism",
    "Report",
    "Sandbox",
    "Transition",
    "deliver",
    "lambda_context",
    "message",
    "sqs_event",
]

_NAMES = {
    "tarry.tools.simulator.sqs": ("Realism",),
    "tarry.tools.testing.delivering": (
        "DeliveredBatch", "DeliveredMessage", "deliver", "lambda_context", "message", "sqs_event",
    ),
    "tarry.tools.testing.faults": ("Fault", "Faults"),
    "tarry.tools.testing.messages": ("QueuedMessage",),
    "tarry.tools.testing.report": ("Report",),
    "tarry.tools.testing.sandbox": ("Sandbox",),
    "tarry.tools.testing.timeline": ("Transition",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: pytest imports this package in every run, for its plugin."""
    for home, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'tarry.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
