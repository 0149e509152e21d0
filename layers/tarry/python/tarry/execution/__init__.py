"""Running the handler over a batch, and deciding on each message."""
