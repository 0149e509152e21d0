"""Batch sizes and batching windows that Lambda refuses."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding, SafeChange
from tarry.tools.check.rules.visibility import changes_for_window

FIFO_BATCH = "E9024"
BATCH_WITHOUT_WINDOW = "E9025"
MOST_WITHOUT_WINDOW = 10
MOST = 10_000
LONGEST_WINDOW = 300


def refused_batches(mapping: CheckedMapping, queue: CheckedQueue | None) -> Iterator[Finding]:
    """Compare the batch size and the window of a mapping with Lambda's limits."""
    size, window = mapping.batch_size, mapping.window_seconds
    functions = (mapping.function.name,) if mapping.function else ()
    start = f"{mapping.name[:1].upper()}{mapping.name[1:]}"
    large, waits = mapping.at.below("BatchSize"), mapping.at.below("MaximumBatchingWindowInSeconds")
    if mapping.is_fifo:
        if size is not None and size > MOST_WITHOUT_WINDOW:
            text = f"{start} has a BatchSize of {size}; on a FIFO queue Lambda accepts at most 10. Set:"
            yield Finding(FIFO_BATCH, functions, text, "BatchSize: 10", at=large, changes=(SafeChange(large, "10"),))
        if window:
            text = (
                f"{start} has a MaximumBatchingWindowInSeconds of {window}; Lambda accepts none on a FIFO "
                "queue. Remove it."
            )
            yield Finding(FIFO_BATCH, functions, text, at=waits)
        return
    if size is not None and size > MOST:
        text = f"{start} has a BatchSize of {size}; Lambda accepts at most 10000. Set:"
        yield Finding(BATCH_WITHOUT_WINDOW, functions, text, "BatchSize: 10000", at=large)
    elif size is not None and size > MOST_WITHOUT_WINDOW and window == 0:
        text = (
            f"{start} has a BatchSize of {size}; Lambda accepts more than 10 only with a batching window of at "
            "least 1 s. Set:"
        )
        changes = (SafeChange(waits, "1"), *changes_for_window(mapping, queue, 1))
        snippet = "MaximumBatchingWindowInSeconds: 1"
        yield Finding(BATCH_WITHOUT_WINDOW, functions, text, snippet, at=large, changes=changes)
    if window is not None and window > LONGEST_WINDOW:
        text = f"{start} has a MaximumBatchingWindowInSeconds of {window}; Lambda accepts at most 300. Set:"
        snippet = "MaximumBatchingWindowInSeconds: 300"
        yield Finding(BATCH_WITHOUT_WINDOW, functions, text, snippet, at=waits)
