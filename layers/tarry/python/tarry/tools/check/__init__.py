"""Rules for templates: mistakes that a run on this machine does not show, and that make a function fail at AWS."""
