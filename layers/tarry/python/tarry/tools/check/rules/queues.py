"""Dead-letter queues: missing, or unfit for the messages they are to keep."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tarry.decide.backoff import BadDelay, bounds_of
from tarry.decide.retry_policy import FIFO_BACKOFF, STANDARD_BACKOFF
from tarry.tools.check.facts import DAYS, LONGEST_RETENTION_SECONDS, CheckedMapping, CheckedQueue, Facts
from tarry.tools.check.finding import At, Finding, SafeChange
from tarry.tools.check.sources import ConsumerCode
from tarry.tools.template import TemplateQueue

BELOW_TIMEOUT = "E9011"
BELOW_RECOMMENDATION = "W9012"
TIMES = 6
"""AWS recommends a visibility timeout of six times the timeout of the function, plus the batching window."""
LONGEST = 43_200


def recommended(timeout: int, window: int) -> int:
    """Return the visibility timeout that AWS recommends for a timeout of a function and a window, in seconds."""
    return min(TIMES * timeout + window, LONGEST)


def changes_for_window(mapping: CheckedMapping, queue: CheckedQueue | None, window: int) -> tuple[SafeChange, ...]:
    """Return the change of a queue without which a window of a mapping makes its visibility timeout too short."""
    timeout = mapping.function.timeout_seconds if mapping.function else None
    if queue is None or timeout is None or queue.visibility_seconds is None:
        return ()
    wanted = recommended(timeout, window)
    at = queue.at.below("VisibilityTimeout")
    return (SafeChange(at, str(wanted)),) if queue.visibility_seconds < wanted else ()


def short_visibility(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Compare the visibility timeout of a queue with the timeout of a function and the window of its mapping."""
    function = mapping.function
    if function is None or function.timeout_seconds is None or queue.visibility_seconds is None:
        return
    timeout, visibility, window = function.timeout_seconds, queue.visibility_seconds, mapping.window_seconds
    wanted = recommended(timeout, window or 0)
    at = queue.at.below("VisibilityTimeout")
    changes = (SafeChange(at, str(wanted)),) if window is not None else ()
    snippet = f"VisibilityTimeout: {wanted}"
    has = f"{queue.title} has a VisibilityTimeout of {visibility} s"
    if visibility < timeout:
        text = (
            f"{has}, below the Timeout of {timeout} s of {function.name}: Lambda refuses the mapping, and messages are "
            "delivered again while they are handled. Set:"
        )
        yield Finding(BELOW_TIMEOUT, (function.name,), text, snippet, at=at, changes=changes)
    elif window is not None and visibility < wanted:
        plus = f" plus the window of {window} s" if window else ""
        text = (
            f"{has}, below six times the Timeout of {timeout} s of {function.name}{plus}: a batch that is throttled or "
            "waits for its invocation is delivered again while it runs. Set:"
        )
        yield Finding(BELOW_RECOMMENDATION, (function.name,), text, snippet, at=at, changes=changes)


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


BEYOND_RETENTION = "W9027"
FILLS_IN_FLIGHT = "W9028"
IN_FLIGHT_PLACES = 120_000
"""The most messages of a queue that can be invisible at once."""


def long_delays(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Compare the sum of the delays of a retry policy with the retention of its queue and its places in flight."""
    function = mapping.function
    total = longest_wait(mapping, queue)
    if function is None or total is None:
        return
    at = queue.at.below("MessageRetentionPeriod")
    kept = queue.retention_seconds
    if kept is not None and total >= kept:
        text = (
            f"The retries of {function.name} take up to {total:,.0f} s, and {queue.title} keeps messages for {kept:,} "
            "s: a message expires before its last attempt. Lower max_attempts or the delays, or set:"
        )
        needed = next((days for days in range(1, 15) if days * DAYS > total), 14)
        yield Finding(BEYOND_RETENTION, (function.name,), text, f"MessageRetentionPeriod: {needed * DAYS}", at=at)
    if total > IN_FLIGHT_PLACES:
        per_hour = IN_FLIGHT_PLACES / total * 3600
        text = (
            f"The retries of {function.name} take up to {total:,.0f} s, during which a message stays in flight: with "
            f"more than {per_hour:,.0f} failing messages an hour, all 120,000 places of {queue.title} are taken, and "
            "SQS delivers no more. Lower max_attempts or the delays, or wait outside of the queue, with SendAgain to "
            "another one."
        )
        yield Finding(FILLS_IN_FLIGHT, (function.name,), text, at=mapping.at)


def longest_wait(mapping: CheckedMapping, queue: CheckedQueue) -> float | None:
    """Return the most seconds that the retries in place of a message take; None if it is not certain."""
    code = mapping.function.code if mapping.function else None
    if code is None or code.attempts is None or not code.is_backoff_known:
        return None
    steps = code.steps_for(queue.name)
    if not any(each.leads_to == "retry" for each in steps):
        return None
    backoff = code.backoff or (FIFO_BACKOFF if queue.is_fifo else STANDARD_BACKOFF)
    try:
        limits = [bounds_of(backoff, attempt) for attempt in range(1, code.attempts.number)]
    except BadDelay:
        return None
    return sum(each[1] for each in limits if each is not None)


NO_DEAD_LETTERS = "W9014"
OTHER_TYPE = "E9015"
SHORT_RETENTION = "W9016"
OWN_DEAD_LETTERS = "E9017"
DEAD_LETTERS_OF_DEAD_LETTERS = "W9018"
SMALL_DEAD_LETTERS = "W9019"


def no_dead_letters(mapping: CheckedMapping, queue: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Find a queue with a function and without a dead-letter queue; dead-letter queues need none."""
    if queue.has_redrive is not False or any(each.dead_letters == queue.name for each in facts.queues.values()):
        return
    function = mapping.function
    other = ""
    if function is not None and function.has_dead_letter_config:
        other = f" The one that {function.name} has is for asynchronous invocations, not for queues."
    text = (
        f"{queue.title} has no dead-letter queue: a message that always fails is delivered until its retention ends, "
        f"and then lost.{other} Add a queue, and to {queue.title}:"
    )
    target = f"!GetAtt {queue.logical_id}DeadLetters.Arn" if queue.logical_id else "the ARN of the new queue"
    snippet = f"RedrivePolicy: {{deadLetterTargetArn: {target}, maxReceiveCount: 15}}"
    yield Finding(NO_DEAD_LETTERS, (mapping.consumer,), text, snippet, at=queue.at)


def unfit_dead_letters(queue: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Compare a queue with its dead-letter queue."""
    if queue.dead_letters is None:
        return
    at = queue.at.below("RedrivePolicy")
    functions = tuple(each.function.name for each in facts.consumers_of(queue.name) if each.function)
    if queue.dead_letters == queue.name:
        text = (
            f"{queue.title} is its own dead-letter queue: SQS keeps delivering a message that always fails. Name "
            "another queue as deadLetterTargetArn."
        )
        yield Finding(OWN_DEAD_LETTERS, functions, text, at=at)
        return
    if queue.is_fifo != queue.dead_letters.endswith(".fifo"):
        kinds = ("FIFO", "a standard queue") if queue.is_fifo else ("a standard queue", "FIFO")
        text = (
            f"{queue.title} is {kinds[0]}, and its dead-letter queue {facts.title_of(queue.dead_letters)} is "
            f"{kinds[1]}: SQS refuses the RedrivePolicy. Name a queue of the same type."
        )
        yield Finding(OTHER_TYPE, functions, text, at=at)
        return
    if (dead_letters := facts.queues.get(queue.dead_letters)) is not None:
        yield from _retention(queue, dead_letters, functions)
        yield from _size(queue, dead_letters, functions)
        yield from _own_redrive(queue, dead_letters, facts)


def _retention(queue: CheckedQueue, dead_letters: CheckedQueue, functions: tuple[str, ...]) -> Iterator[Finding]:
    kept, kept_dead = queue.retention_seconds, dead_letters.retention_seconds
    if queue.is_fifo or kept is None or kept_dead is None or kept_dead > kept:
        return
    if kept >= LONGEST_RETENTION_SECONDS:
        return  # no retention is longer
    text = (
        f"{dead_letters.title} keeps messages for {_days(kept_dead)}, not longer than {queue.title} ({_days(kept)}): a "
        "message that SQS moves keeps its age, so it may be deleted before it is seen. Set:"
    )
    at = dead_letters.at.below("MessageRetentionPeriod")
    value = str(LONGEST_RETENTION_SECONDS)
    yield Finding(
        SHORT_RETENTION, functions, text, f"MessageRetentionPeriod: {value}", at=at, changes=(SafeChange(at, value),)
    )


def _size(queue: CheckedQueue, dead_letters: CheckedQueue, functions: tuple[str, ...]) -> Iterator[Finding]:
    most, most_dead = queue.maximum_bytes, dead_letters.maximum_bytes
    if most is None or most_dead is None or most_dead >= most:
        return
    text = (
        f"{dead_letters.title} takes messages of at most {most_dead:,} bytes, {queue.title} of {most:,}: a larger dead "
        "letter cannot be sent. Set:"
    )
    at = dead_letters.at.below("MaximumMessageSize")
    yield Finding(
        SMALL_DEAD_LETTERS, functions, text, f"MaximumMessageSize: {most}", at=at, changes=(SafeChange(at, str(most)),)
    )


def _own_redrive(queue: CheckedQueue, dead_letters: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Find the redrive policy of a dead-letter queue without a function."""
    target = dead_letters.dead_letters
    if target is None or target == dead_letters.name or facts.consumers_of(dead_letters.name):
        return
    text = (
        f"{dead_letters.title}, the dead-letter queue of {queue.title}, has a dead-letter queue of its own: looking at "
        f"its messages counts as a receive, and SQS then moves them to {facts.title_of(target)}. Remove its "
        "RedrivePolicy."
    )
    yield Finding(DEAD_LETTERS_OF_DEAD_LETTERS, (), text, at=dead_letters.at.below("RedrivePolicy"))


def _days(seconds: int) -> str:
    return f"{seconds / DAYS:g} days" if seconds >= DAYS else f"{seconds:,} s"


NO_LAST_STEP = "W9030"


def no_last_step(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Find a list of failure steps whose last one passes failures on."""
    function = mapping.function
    steps = function.code.steps_for(queue.name) if function and function.code else ()
    if function is None or not steps or not steps[-1].passes_on:
        return
    text = (
        f"The last failure step of {function.name} for {queue.title}, {steps[-1].kind}, does not take every failure: "
        "an exhausted message stays in its queue until SQS moves it without a failure record. Add as the last step of "
        "on_failure:"
    )
    yield Finding(NO_LAST_STEP, (function.name,), text, "DeadLetter()", at=function.at)


NO_ALARM = "W9020"
WRONG_METRIC = "W9021"
VISIBLE = "ApproximateNumberOfMessagesVisible"
TELLING = frozenset({VISIBLE, "ApproximateAgeOfOldestMessage"})
"""The metrics that tell of messages in a queue."""


def unseen_dead_letters(queue: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Find a dead-letter queue whose messages no alarm tells of; ``queue`` is its source queue, with a function."""
    dead_letters = facts.queues.get(queue.dead_letters or "")
    if dead_letters is None or dead_letters.name == queue.name or facts.consumers_of(dead_letters.name):
        return
    functions = tuple(each.function.name for each in facts.consumers_of(queue.name) if each.function)
    alarms = [each for each in facts.alarms if each.queue == dead_letters.name]
    if any(each.metric in TELLING for each in alarms) or not facts.are_alarms_known:
        return
    if alarms:
        at = dead_letters.at._replace(resource=alarms[0].logical_id).below("MetricName")
        misses = "misses the dead letters that SQS moves" if alarms[0].metric == "NumberOfMessagesSent" else ""
        text = (
            f"{alarms[0].logical_id} watches {alarms[0].metric} of {dead_letters.title}, which "
            f"{misses or 'does not tell how many dead letters there are'}. Set:"
        )
        yield Finding(WRONG_METRIC, functions, text, f"MetricName: {VISIBLE}", at=at)
    else:
        text = (
            f"No alarm tells that {dead_letters.title} has dead letters. Add an AWS::CloudWatch::Alarm that fires when "
            f"the Maximum of {VISIBLE} (AWS/SQS) is above 0, with:"
        )
        snippet = f"Dimensions: [{{Name: QueueName, Value: {dead_letters.name_in_template}}}]"
        yield Finding(NO_ALARM, functions, text, snippet, at=dead_letters.at)
