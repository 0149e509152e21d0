"""Requests to SQS: the client, look-ups, limits, refusals; and `Queue`."""
