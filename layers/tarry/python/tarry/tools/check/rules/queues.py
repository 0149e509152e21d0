"""Queues: their timeouts and receive counts, and their dead-letter queues."""

from collections.abc import Iterator

from tarry.decide.retry_policy import FIFO_BACKOFF, STANDARD_BACKOFF, BadDelay, bounds_of
from tarry.sqs.refusals import MAX_REQUEST_BYTES
from tarry.support.values import MAX_VISIBILITY_SECONDS
from tarry.tools.check.facts import DAYS, LONGEST_RETENTION_SECONDS, Facts, resource_of
from tarry.tools.check.finding import At, Finding, SafeChange, setting
from tarry.tools.template import TemplateFunction, TemplateMapping, TemplateQueue

TIMES = 6
"""AWS recommends a visibility timeout of six times the timeout of the function, plus the batching window."""


def recommended(timeout: int, window: int) -> int:
    """Return the visibility timeout that AWS recommends for a timeout of a function and a window, in seconds."""
    return min(TIMES * timeout + window, MAX_VISIBILITY_SECONDS)


def changes_for_window(
    queue: TemplateQueue | None, function: TemplateFunction | None, window: int, facts: Facts
) -> tuple[SafeChange, ...]:
    """Return the change of a queue without which a window of a mapping makes its visibility timeout too short."""
    if queue is None or function is None:
        return ()
    timeout, visibility = facts.timeout(function), facts.visibility(queue)
    if timeout is None or visibility is None or visibility >= (wanted := recommended(timeout, window)):
        return ()
    return (SafeChange(facts.at(queue, "VisibilityTimeout"), str(wanted)),)


def short_visibility(
    mapping: TemplateMapping, queue: TemplateQueue, function: TemplateFunction, facts: Facts
) -> Iterator[Finding]:
    """Compare the visibility timeout of a queue with the timeout of a function and the window of its mapping."""
    timeout, visibility, window = facts.timeout(function), facts.visibility(queue), facts.window(mapping)
    if timeout is None or visibility is None:
        return
    wanted = recommended(timeout, window or 0)
    at = facts.at(queue, "VisibilityTimeout")
    is_safe, functions = window is not None, (function.logical_id,)
    has = f"{queue.title} has a VisibilityTimeout of {visibility} s"
    if visibility < timeout:
        text = (
            f"{has}, below the Timeout of {timeout} s of {function.logical_id}: Lambda refuses the mapping, and "
            "messages are delivered again while they are handled. Set:"
        )
        yield setting("E9011", functions, text, at, wanted, is_safe=is_safe)
    elif window is not None and visibility < wanted:
        plus = f" plus the window of {window} s" if window else ""
        text = (
            f"{has}, below six times the Timeout of {timeout} s of {function.logical_id}{plus}: a batch that is "
            "throttled or waits for its invocation is delivered again while it runs. Set:"
        )
        yield setting("W9012", functions, text, at, wanted, is_safe=is_safe)


HIGHEST = 1000
"""The highest `maxReceiveCount` that SQS accepts."""


def receive_counts(
    mapping: TemplateMapping, queue: TemplateQueue, function: TemplateFunction, facts: Facts
) -> Iterator[Finding]:
    """Compare the attempts of a consumer with the receives that its queue allows."""
    consumer = facts.consumer(function)
    attempts = consumer.max_attempts if consumer else None
    if (
        consumer is None
        or attempts is None
        or not any(step.leads_to == "retry" for step in facts.steps(function, queue.name))
    ):
        return
    if facts.known(queue, "RedrivePolicy", value=True) is None:
        return
    count, several, name = queue.max_receive_count, queue.is_fifo and mapping.batch_size > 1, function.logical_id
    if queue.is_fifo and consumer.has_default_attempts:
        one = "BatchSize: 1, so that receives behind a failing message use up no attempts, and " if several else ""
        text = (
            f"{name} consumes {queue.title} with the default max_attempts of {attempts}: with the default "
            "delay of 30 s, an outage of more than 2 minutes dead-letters the first messages of each group, and the "
            f"messages behind them run. Set {one}max_attempts for the longest outage (40 for 15 minutes)."
        )
        yield Finding("W9004", (name,), text, at=At(resource_of(queue)))
    wanted = min((mapping.batch_size if several else 2) * attempts + 5, HIGHEST)
    if queue.dead_letter_arn is None or count >= (wanted if several else attempts):
        return
    low = f"{queue.title}{facts.where(queue)} has a maxReceiveCount of {count}"
    if several:
        text = (
            f"{low}, below BatchSize * max_attempts + 5 of {name}: SQS counts a receive for each message "
            "behind a failed one, so a message can be dead-lettered with attempts left. Set in its RedrivePolicy:"
        )
    else:
        text = (
            f"{low}, below the max_attempts of {attempts} of {name}: a message has only {count} attempts. "
            "Set in its RedrivePolicy (2 * max_attempts + 5):"
        )
    at = facts.at(queue, "RedrivePolicy", "maxReceiveCount")
    yield setting("W9004", (name,), text, at, wanted)


IN_FLIGHT_PLACES = 120_000
"""The most messages of a queue that can be invisible at once."""


def long_delays(
    mapping: TemplateMapping, queue: TemplateQueue, function: TemplateFunction, facts: Facts
) -> Iterator[Finding]:
    """Compare the sum of the delays of a retry policy with the retention of its queue and its places in flight."""
    total = _longest_wait(queue, function, facts)
    if total is None:
        return
    at, kept = facts.at(queue, "MessageRetentionPeriod"), facts.retention(queue)
    if kept is not None and total >= kept:
        text = (
            f"The retries of {function.logical_id} take up to {total:,.0f} s, and {queue.title} keeps messages for "
            f"{kept:,} s: a message expires before its last attempt. Lower max_attempts or the delays, or set:"
        )
        needed = next((days for days in range(1, 15) if days * DAYS > total), 14)
        yield Finding("W9027", (function.logical_id,), text, f"MessageRetentionPeriod: {needed * DAYS}", at=at)
    if total > IN_FLIGHT_PLACES:
        per_hour = IN_FLIGHT_PLACES / total * 3600
        text = (
            f"The retries of {function.logical_id} take up to {total:,.0f} s, during which a message stays in flight: "
            f"with more than {per_hour:,.0f} failing messages an hour, all 120,000 places of {queue.title} are taken, "
            "and SQS delivers no more. Lower max_attempts or the delays, or wait outside of the queue, with SendAgain "
            "to another one."
        )
        yield Finding("W9028", (function.logical_id,), text, at=facts.at_mapping(mapping))


def _longest_wait(queue: TemplateQueue, function: TemplateFunction, facts: Facts) -> float | None:
    """Return the most seconds that the retries in place of a message take; None if it is not certain."""
    code = facts.consumer(function)
    if code is None or code.max_attempts is None or not code.is_backoff_known:
        return None
    if not any(each.leads_to == "retry" for each in facts.steps(function, queue.name)):
        return None
    backoff = code.backoff or (FIFO_BACKOFF if queue.is_fifo else STANDARD_BACKOFF)
    try:
        limits = [bounds_of(backoff, attempt) for attempt in range(1, code.max_attempts)]
    except BadDelay:
        return None
    return sum(each[1] for each in limits if each is not None)


def no_dead_letters(queue: TemplateQueue, function: TemplateFunction | None, facts: Facts) -> Iterator[Finding]:
    """Find a queue with a function and without a dead-letter queue; dead-letter queues need none."""
    has_one = queue.dead_letter_arn is not None or facts.known(queue, "RedrivePolicy", value=True) is None
    if has_one or any(each.dead_letters == queue.name for each in facts.queues.values()):
        return
    name = function.logical_id if function else "its function"
    other = ""
    if function is not None and function.asynchronous.dead_letter_arn is not None:
        other = f" The one that {name} has is for asynchronous invocations, not for queues."
    text = (
        f"{queue.title} has no dead-letter queue: a message that always fails is delivered until its retention ends, "
        f"and then lost.{other} Add a queue, and to {queue.title}:"
    )
    target = f"!GetAtt {queue.logical_id}DeadLetters.Arn" if queue.logical_id else "the ARN of the new queue"
    snippet = f"RedrivePolicy: {{deadLetterTargetArn: {target}, maxReceiveCount: 15}}"
    yield Finding("W9014", (name,), text, snippet, at=facts.at(queue))


def unfit_dead_letters(queue: TemplateQueue, facts: Facts) -> Iterator[Finding]:
    """Compare a queue with its dead-letter queue."""
    if queue.dead_letters is None:
        return
    at = facts.at(queue, "RedrivePolicy")
    functions = facts.consumers_of(queue.name)
    if queue.dead_letters == queue.name:
        text = (
            f"{queue.title} is its own dead-letter queue: SQS keeps delivering a message that always fails. Name "
            "another queue as deadLetterTargetArn."
        )
        yield Finding("E9017", functions, text, at=at)
        return
    if queue.is_fifo != queue.dead_letters.endswith(".fifo"):
        kinds = ("FIFO", "a standard queue") if queue.is_fifo else ("a standard queue", "FIFO")
        text = (
            f"{queue.title} is {kinds[0]}, and its dead-letter queue {facts.title_of(queue.dead_letters)} is "
            f"{kinds[1]}: SQS refuses the RedrivePolicy. Name a queue of the same type."
        )
        yield Finding("E9015", functions, text, at=at)
        return
    if (dead_letters := facts.queues.get(queue.dead_letters)) is not None:
        yield from _retention(queue, dead_letters, facts)
        yield from _size(queue, dead_letters, facts)
        yield from _own_redrive(queue, dead_letters, facts)


def _retention(queue: TemplateQueue, dead_letters: TemplateQueue, facts: Facts) -> Iterator[Finding]:
    kept, kept_dead = facts.retention(queue), facts.retention(dead_letters)
    if queue.is_fifo or kept is None or kept_dead is None or kept_dead > kept:
        return
    if kept >= LONGEST_RETENTION_SECONDS:
        return  # no retention is longer
    text = (
        f"{dead_letters.title} keeps messages for {_days(kept_dead)}, not longer than {queue.title} ({_days(kept)}): a "
        "message that SQS moves keeps its age, so it may be deleted before it is seen. Set:"
    )
    at = facts.at(dead_letters, "MessageRetentionPeriod")
    yield setting("W9016", facts.consumers_of(queue.name), text, at, LONGEST_RETENTION_SECONDS)


def _size(queue: TemplateQueue, dead_letters: TemplateQueue, facts: Facts) -> Iterator[Finding]:
    key = "MaximumMessageSize"
    most, most_dead = (
        facts.known(each, key, int(each.attributes.get(key, MAX_REQUEST_BYTES))) for each in (queue, dead_letters)
    )
    if most is None or most_dead is None or most_dead >= most:
        return
    text = (
        f"{dead_letters.title} takes messages of at most {most_dead:,} bytes, {queue.title} of {most:,}: a larger dead "
        "letter cannot be sent. Set:"
    )
    yield setting("W9019", facts.consumers_of(queue.name), text, facts.at(dead_letters, key), most)


def _own_redrive(queue: TemplateQueue, dead_letters: TemplateQueue, facts: Facts) -> Iterator[Finding]:
    """Find the redrive policy of a dead-letter queue without a function."""
    target = dead_letters.dead_letters
    if target is None or target == dead_letters.name or facts.consumers_of(dead_letters.name):
        return
    text = (
        f"{dead_letters.title}, the dead-letter queue of {queue.title}, has a dead-letter queue of its own: looking at "
        f"its messages counts as a receive, and SQS then moves them to {facts.title_of(target)}. Remove its "
        "RedrivePolicy."
    )
    yield Finding("W9018", (), text, at=facts.at(dead_letters, "RedrivePolicy"))


def _days(seconds: int) -> str:
    return f"{seconds / DAYS:g} days" if seconds >= DAYS else f"{seconds:,} s"


def no_last_step(queue: TemplateQueue, function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find a list of failure steps whose last one passes failures on."""
    steps = facts.steps(function, queue.name)
    if not steps or not steps[-1].passes_on:
        return
    text = (
        f"The last failure step of {function.logical_id} for {queue.title}, {steps[-1].kind}, does not take every "
        "failure: an exhausted message stays in its queue until SQS moves it without a failure record. Add as the last "
        "step of on_failure:"
    )
    yield Finding("W9030", (function.logical_id,), text, "DeadLetter()", at=facts.at(function))


VISIBLE = "ApproximateNumberOfMessagesVisible"
TELLING = frozenset({VISIBLE, "ApproximateAgeOfOldestMessage"})
"""The metrics that tell of messages in a queue."""


def unseen_dead_letters(queue: TemplateQueue, facts: Facts) -> Iterator[Finding]:
    """Find a dead-letter queue whose messages no alarm tells of; ``queue`` is its source queue, with a function."""
    dead_letters = facts.queues.get(queue.dead_letters or "")
    if dead_letters is None or dead_letters.name == queue.name or facts.consumers_of(dead_letters.name):
        return
    functions = facts.consumers_of(queue.name)
    alarms = [each for each in facts.template.checked.alarms if each.queue == dead_letters.name]
    if any(each.metric in TELLING for each in alarms) or not facts.template.checked.are_alarms_known:
        return
    if alarms:
        at = At(alarms[0].logical_id, ("Properties", "MetricName"))
        misses = "misses the dead letters that SQS moves" if alarms[0].metric == "NumberOfMessagesSent" else ""
        text = (
            f"{alarms[0].logical_id} watches {alarms[0].metric} of {dead_letters.title}, which "
            f"{misses or 'does not tell how many dead letters there are'}. Set:"
        )
        yield setting("W9021", functions, text, at, VISIBLE, is_safe=False)
    else:
        text = (
            f"No alarm tells that {dead_letters.title} has dead letters. Add an AWS::CloudWatch::Alarm that fires when "
            f"the Maximum of {VISIBLE} (AWS/SQS) is above 0, with:"
        )
        value = f"!GetAtt {dead_letters.logical_id}.QueueName" if dead_letters.logical_id else dead_letters.name
        snippet = f"Dimensions: [{{Name: QueueName, Value: {value}}}]"
        yield Finding("W9020", functions, text, snippet, at=facts.at(dead_letters))
