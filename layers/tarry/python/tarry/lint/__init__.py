"""Rules for templates: mistakes that a run on this machine does not show, and that make a function fail at AWS."""

from tarry.lint.finding import Finding
from tarry.lint.start import findings_at_start

__all__ = ["Finding", "findings_at_start"]
