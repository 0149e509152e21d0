"""What the tools share: text for a terminal, the names of queues, and the error for wrong input."""
