"""The form that sends a message."""

from aiohttp import web


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
