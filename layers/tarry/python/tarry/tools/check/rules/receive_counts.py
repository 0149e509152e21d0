"""A `maxReceiveCount` or a `BatchSize` that leaves a consumer fewer attempts than its `max_attempts`."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tarry.tools.check.consumer_code import ConsumerCode
from tarry.tools.check.finding import At, Finding, SafeChange
from tarry.tools.template import TemplateQueue

RULE = "W9004"
HIGHEST = 1000
"""The highest `maxReceiveCount` that SQS accepts."""


def receive_counts(
    function: str, consumer: ConsumerCode, queue: TemplateQueue, batch_size: int, place: Callable[[], tuple[Path, int]]
) -> Iterator[Finding]:
    """Compare the attempts of a consumer with the receives that its queue allows.

    Args:
        function: The logical id of the function.
        consumer: Its consumer; without a finding if its attempts are not certain.
        queue: Its source queue.
        batch_size: The ``BatchSize`` of the mapping between them.
        place: Returns the file and line of the queue in the template.
    """
    attempts = consumer.attempts
    if attempts is None or not any(step.leads_to == "retry" for step in consumer.steps_for(queue.name)):
        return
    file, line = place()
    count = queue.max_receive_count
    if queue.is_fifo and attempts.is_default:
        several = "BatchSize: 1, so that receives behind a failing message use up no attempts, and "
        text = (
            f"{function} consumes {queue.title} with the default max_attempts of {attempts.number}: with the default "
            "delay of 30 s, an outage of more than 2 minutes dead-letters the first messages of each group, and the "
            f"messages behind them run. Set {several if batch_size > 1 else ''}max_attempts for the longest outage "
            "(40 for 15 minutes)."
        )
        yield Finding(RULE, (function,), text, file=file, line=line)
    if queue.dead_letter_arn is None:
        return
    at = At(queue.logical_id or queue.name, ("Properties", "RedrivePolicy", "maxReceiveCount"))
    low = f"{queue.title} ({file}:{line}) has a maxReceiveCount of {count}"
    if queue.is_fifo and batch_size > 1:
        wanted = min(batch_size * attempts.number + 5, HIGHEST)
        if count < wanted:
            text = (
                f"{low}, below BatchSize * max_attempts + 5 of {function}: SQS counts a receive for each message "
                "behind a failed one, so a message can be dead-lettered with attempts left. Set in its RedrivePolicy:"
            )
            snippet, changes = f"maxReceiveCount: {wanted}", (SafeChange(at, str(wanted)),)
            yield Finding(RULE, (function,), text, snippet, file, line, at, changes)
    elif count < attempts.number:
        wanted = min(2 * attempts.number + 5, HIGHEST)
        text = (
            f"{low}, below the max_attempts of {attempts.number} of {function}: a message has only {count} attempts. "
            "Set in its RedrivePolicy (2 * max_attempts + 5):"
        )
        snippet, changes = f"maxReceiveCount: {wanted}", (SafeChange(at, str(wanted)),)
        yield Finding(RULE, (function,), text, snippet, file, line, at, changes)
