"""boto3's SQS clients, simulated: for functions that send with a client of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.session import Session


@contextmanager
def simulated_clients(make: Callable[[], Any]) -> Iterator[None]:
    """What boto3 gives out as an SQS client is one that ``make`` makes, for as long as the context lasts."""
    real = Session.create_client

    def create_client(session: Session, service_name: str, *args: Any, **kwargs: Any) -> Any:
        return make() if service_name == "sqs" else real(session, service_name, *args, **kwargs)

    Session.create_client = create_client  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Session.create_client = real  # type: ignore[method-assign]
