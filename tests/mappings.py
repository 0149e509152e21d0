"""Lambda's client with event source mappings whose changes take effect at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from tarry.guard.decision import Setting
from tarry.tools.simulator.lambda_mappings import LambdaMappings
from tarry.tools.template import TemplateMapping
from tests.wire import arn


@dataclass
class IdleMapping:
    """A mapping that delivers nothing."""

    mapping: TemplateMapping
    state: str = "Enabled"
    maximum_concurrency: int | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def change(self, _: float, *, enabled: bool, maximum_concurrency: int | None) -> None:
        self.state = "Enabled" if enabled else "Disabled"
        self.maximum_concurrency = maximum_concurrency

    def set_to(self, setting: Setting) -> None:
        self.change(0, enabled=setting.is_enabled, maximum_concurrency=setting.maximum)


class LambdaAtOnce(LambdaMappings):
    """Lambda's client: a mapping of a function for each of some queues."""

    def __init__(self, function: str, queues: Sequence[str]) -> None:
        self.idle = [IdleMapping(TemplateMapping("", arn(queue), function)) for queue in queues]
        super().__init__(cast("Any", self.idle), lambda: 0)

    def get_paginator(self, name: str) -> Any:
        return SimpleNamespace(paginate=lambda **asked: [getattr(self, name)(**asked)])
