"""The rules by id, with one sentence each."""

from collections.abc import Mapping

RULES: Mapping[str, str] = {
    "W9001": "The build of a function lacks modules that its code imports.",
    "W9003": "The role of a function lacks permissions that its consumer needs.",
    "W9004": "A queue allows fewer receives than the consumer has attempts.",
    "W9005": "A decorator of Powertools above a consumer makes it fail.",
    "E9010": "Lambda ignores the list of failed messages, and deletes them.",
    "E9011": "The visibility timeout is shorter than the timeout of the function.",
    "W9012": "The visibility timeout is shorter than six times the timeout of the function plus the batching window.",
    "W9014": "A queue with a function has no dead-letter queue.",
    "E9015": "A dead-letter queue has another type than its source queue.",
    "W9016": "A dead-letter queue does not keep messages for longer than its source queue.",
    "E9017": "A queue is its own dead-letter queue.",
    "W9018": "A dead-letter queue has a dead-letter queue.",
    "W9019": "A dead-letter queue takes smaller messages than its source queue.",
    "W9020": "No alarm tells of the messages in a dead-letter queue.",
    "W9021": "The alarm of a dead-letter queue is on a metric that misses dead letters.",
    "W9022": "The role of a function allows actions that lose messages, and its code does not use them.",
    "E9023": "The role of a function allows no use of the key that encrypts its queue.",
    "E9024": "Lambda refuses the batch size or the window of a mapping from a FIFO queue.",
    "E9025": "Lambda refuses the batch size or the window of a mapping.",
    "W9027": "The retries of a consumer take longer than its queue keeps messages.",
    "W9028": "The retries of a consumer keep messages in flight for so long that few failures fill the queue.",
    "W9029": "A consumer sends copies to its own queue until Lambda stops it.",
    "W9030": "The last failure step of a consumer does not take every failure.",
    "W9031": "A function reserves less concurrency than its queues use.",
    "E9032": "A consumer has a runtime on which tarry does not run.",
    "W9033": "A message has so many attributes that its dead letter has no failure record.",
    "W9034": "The timeout of a function leaves no time to settle a message whose handler hangs.",
}
"""The rules of `tarry check`. E: messages are certainly lost, or AWS refuses the template. W: the others."""
