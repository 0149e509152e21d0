"""The check that a request is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError, ParamValidationError


@contextmanager
def refused(what: str, *texts: str) -> Iterator[None]:
    """Check that the request within is refused, with an error text that contains ``texts``.

    The refusal may be that of botocore, which validates requests against AWS's service models.

    Raises:
        AssertionError: The request was accepted, or refused with another text.
    """
    try:
        yield
    except (ClientError, ParamValidationError) as error:
        text = str(error)
    else:
        raise AssertionError(f"accepted: {what}")
    missing = [each for each in texts if each not in text]
    assert not missing, f"{what} was refused without the text {', '.join(missing)}"
