"""One event, from its queues to its end: in real time, or in virtual time; and how it ended."""
