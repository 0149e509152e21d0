"""Dead-letter queues without an alarm, or with one on a metric that misses dead letters."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedQueue, Facts
from tarry.tools.check.finding import Finding

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
