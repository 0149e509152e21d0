"""From a failure to an outcome: no requests, no clock of its own."""
