"""The page of one message."""

from aiohttp import web


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
