"""Plans for `tarry plan`: the timeline of a retry policy, and a queue during an outage."""
