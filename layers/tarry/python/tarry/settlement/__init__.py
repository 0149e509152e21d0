"""Carrying out outcomes at SQS: sending, deleting and delaying messages, and the fallbacks if SQS refuses."""
