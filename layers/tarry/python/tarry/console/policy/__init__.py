"""The retry policy of a consumer."""

from aiohttp import web


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
