"""Helpers that do not know SQS: frozen values, queue ARNs, reading exceptions, forked processes."""
