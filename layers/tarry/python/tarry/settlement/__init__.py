"""Carrying out outcomes at SQS: sending, deleting and hiding messages, and the fallbacks if SQS refuses."""
