"""Helpers of all tools: text for a terminal, queue attributes, and the error for wrong usage."""
