"""What AWS has to refuse."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError, ParamValidationError


@contextmanager
def refused(what: str, *words: str) -> Iterator[None]:
    """Raises `AssertionError` unless the request within is refused, with these words in the refusal.

    Some of what AWS's model of a service rules out, botocore refuses before it is sent.
    """
    try:
        yield
    except (ClientError, ParamValidationError) as error:
        text = str(error)
    else:
        raise AssertionError(f"accepted: {what}")
    missing = [word for word in words if word not in text]
    assert not missing, f"{what} was refused without the words {', '.join(missing)}"
