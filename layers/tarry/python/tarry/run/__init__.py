"""Running handlers over a batch."""
