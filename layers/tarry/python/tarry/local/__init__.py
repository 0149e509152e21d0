"""A template's system on this machine: queues in an embedded SQS, functions as processes. Or all in virtual time."""
