"""Outcomes carried out at SQS, and the leases of messages."""
