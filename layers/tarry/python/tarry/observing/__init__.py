"""Metrics, ``on_outcome``, and keys for Powertools' `Logger`; loaded only where one of these is in use."""
