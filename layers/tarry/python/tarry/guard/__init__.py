"""Suspend consumers during an outage, and resume them: the operations of functions/guard and of the command."""
