"""The context object that Lambda passes to a handler."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class LambdaContext:
    """A context with the attributes of Lambda's own."""

    function_name: str
    invoked_function_arn: str
    memory_limit_in_mb: str
    aws_request_id: str
    time_left: Callable[[], float]
    """Returns the seconds until Lambda kills the process."""
    log_stream_name: str
    log_group_name: str = ""
    function_version: str = "$LATEST"
    identity: None = None
    client_context: None = None

    def __post_init__(self) -> None:
        self.log_group_name = self.log_group_name or f"/aws/lambda/{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int(self.time_left() * 1000))
