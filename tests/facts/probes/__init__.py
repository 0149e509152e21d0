"""The probes by subject. Importing this package registers all probes."""

from tests.facts.probes import dead_letters, fifo, mapping, messages, queues, stopped_moto, waiting

__all__ = ["dead_letters", "fifo", "mapping", "messages", "queues", "stopped_moto", "waiting"]
