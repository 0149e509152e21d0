"""Dead letters: scans, groups, the list, retrying, editing, removing."""

from aiohttp import web


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
