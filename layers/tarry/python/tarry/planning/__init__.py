"""What a retry policy does before it does it: the times of its attempts, and the queue during an outage."""
