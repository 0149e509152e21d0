"""What a function's answer means to the event source mapping."""

from collections.abc import Collection
from typing import Any

KEY = "batchItemFailures"


class WholeBatchFailed(Exception):
    """The answer fails the whole batch; the text says why."""


def failed_ids(response: Any, batch: Collection[str]) -> frozenset[str]:
    """The ids that the answer reports as failed; the mapping deletes all others.

    An answer that says nothing, or null, is complete success. One that is damaged, or names what is not in the batch,
    is complete failure, and so is here what AWS does not document (an answer that is no object).

    Raises:
        WholeBatchFailed: nothing is to be deleted.
    """
    if response is None:
        return frozenset()
    if not isinstance(response, dict):
        raise WholeBatchFailed(f"the response is no object but {response!r:.40}")
    items = response.get(KEY)
    if items is None:
        return frozenset()
    if not isinstance(items, list):
        raise WholeBatchFailed(f"{KEY} is no list but {items!r:.40}")
    return frozenset(_identifier(item, batch) for item in items)


def _identifier(item: Any, batch: Collection[str]) -> str:
    if not isinstance(item, dict) or "itemIdentifier" not in item:
        raise WholeBatchFailed(f"{KEY} has an entry without itemIdentifier: {item!r:.60}")
    identifier = item["itemIdentifier"]
    if not isinstance(identifier, str) or not identifier:
        raise WholeBatchFailed(f"an itemIdentifier is {identifier!r:.40}")
    if identifier not in batch:
        raise WholeBatchFailed(f"an itemIdentifier names no message of the batch: {identifier:.60}")
    return identifier
