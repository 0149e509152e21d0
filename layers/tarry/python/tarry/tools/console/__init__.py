"""`tarry console`: the queues and their dead letters in a browser."""
