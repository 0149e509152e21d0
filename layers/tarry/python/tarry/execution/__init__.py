"""Running the handler over a batch: each message comes out with a decision."""
