"""Consumers run on this machine: their queues in an embedded SQS, their handlers in this process."""
