"""From a verdict to an outcome: classification, attempts, backoff, failure steps."""
