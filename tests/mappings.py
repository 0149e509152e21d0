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


class LambdaAtOnce:
    """Lambda's client: the mappings of a function, one for each of some queues. Requests can fail."""

    def __init__(self, function: str, queues: Sequence[str]) -> None:
        self.mappings = [IdleMapping(TemplateMapping("", arn(queue), function)) for queue in queues]
        self.aws = LambdaMappings(cast("Any", self.mappings), lambda: 0)
        """The same mappings, without faults."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.error = BaseException()
        self.failing: int | str = ""
        """The requests with the error: the number of one, or the name of several."""
        self.takes_effect = False
        """Whether a request that fails takes effect all the same."""

    def __getattr__(self, name: str) -> Any:
        def request(**asked: Any) -> Any:
            number = len(self.requests)
            self.requests.append((name, asked))
            if self.failing not in (number, name):
                return getattr(self.aws, name)(**asked)
            if self.takes_effect:
                getattr(self.aws, name)(**asked)
            raise self.error

        return request

    def get_paginator(self, name: str) -> Any:
        return SimpleNamespace(paginate=lambda **asked: iter([getattr(self, name)(**asked)]))
