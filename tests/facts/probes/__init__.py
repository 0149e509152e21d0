"""The probes by subject. Importing this package registers all probes."""

from tests.facts.probes import (
    answers,
    counting,
    dead_letters,
    delays,
    fifo,
    function,
    mapping,
    messages,
    move_tasks,
    queues,
    retention,
    sending,
    stopped_moto,
    visibility,
)

__all__ = [
    "answers",
    "counting",
    "dead_letters",
    "delays",
    "fifo",
    "function",
    "mapping",
    "messages",
    "move_tasks",
    "queues",
    "retention",
    "sending",
    "stopped_moto",
    "visibility",
]
