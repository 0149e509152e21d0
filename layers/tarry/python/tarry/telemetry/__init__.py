"""Telemetry: log lines, and errors as text."""
