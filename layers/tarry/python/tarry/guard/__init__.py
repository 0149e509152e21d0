"""Suspend consumers during an outage, and resume them: the operations of functions/guard and of the command."""

from tarry.guard.decision import GuardLimits
from tarry.guard.operations import CLIENT_CONFIG, CannotGuard, Clients, Guarded, guard

__all__ = ["CLIENT_CONFIG", "CannotGuard", "Clients", "GuardLimits", "Guarded", "guard"]
