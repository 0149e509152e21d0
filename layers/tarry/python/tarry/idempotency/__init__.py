"""Idempotency: a message that was done is not run again, and no two deliveries of it run at the same time."""
