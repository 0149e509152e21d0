"""The commands that `tarry local` prints at its start for another terminal."""

from types import SimpleNamespace
from typing import Any

from tarry.tools.local.session import _hints


def shown(consumed: list[str], targets: dict[str, str | None]) -> list[str]:
    queues = {name: SimpleNamespace(dead_letters=target) for name, target in targets.items()}
    plan = SimpleNamespace(template=SimpleNamespace(queues=queues))
    cloud: Any = SimpleNamespace(plan=plan, sqs=None, url="http://127.0.0.1:4576")
    return list(_hints(cloud, consumed))


def test_the_dead_letter_queue_to_look_at_is_one_that_no_function_consumes() -> None:
    targets = {"orders": "orders-dlq", "mails": "mails-dlq", "orders-dlq": None}
    assert shown(["orders", "mails", "orders-dlq"], targets) == [
        "To see why messages were dead-lettered:",
        "tarry failed show --queue mails-dlq --endpoint-url http://127.0.0.1:4576",
    ]
    assert shown(["orders", "orders-dlq"], targets) == []
