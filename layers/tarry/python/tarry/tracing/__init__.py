"""Spans of OpenTelemetry and subsegments of X-Ray; loaded only where the application has loaded these."""
