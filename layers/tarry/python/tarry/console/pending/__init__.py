"""The messages that are being retried, from an attempt store."""

from aiohttp import web


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
