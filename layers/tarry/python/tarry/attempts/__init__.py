"""Exact attempts: a table that counts the runs of messages that failed, and shows what is being retried."""
