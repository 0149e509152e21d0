"""A message as a handler sees it, and what it can ask for."""
