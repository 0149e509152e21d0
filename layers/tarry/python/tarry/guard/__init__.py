"""Suspend consumers during an outage, and resume them: the operations of functions/guard and of the command."""

from tarry.guard.decision import Limits
from tarry.guard.operations import CLIENT_CONFIG, Clients, Guarded, guard

__all__ = ["CLIENT_CONFIG", "Clients", "Guarded", "Limits", "guard"]
