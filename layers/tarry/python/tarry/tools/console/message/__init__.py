"""The page of one message: why it failed, its story, its body, and its test."""

from tarry.tools.console.message.page import routes

__all__ = ["routes"]
