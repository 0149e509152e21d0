"""The static files: style sheets, scripts, the icon. All are read once, and served from memory."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

STATIC = "/static/"
FOLDER = Path(__file__).parent / "static"
STYLES = "styles.css"
"""All style sheets as one file: the page waits for one request instead of three."""
SCRIPTS = ("htmx.min.js", "console.js")
KEPT = "public, max-age=31536000, immutable"
"""The caching of an address with the hash of its content, which never changes."""


class Asset(NamedTuple):
    """A static file."""

    content: bytes
    type: str
    hash: str


@cache
def assets() -> dict[str, Asset]:
    """Return all static files by name."""
    found = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.is_file()}
    first = ["console.css"]  # the others build on it
    others = [name for name in found if name.endswith(".css") and name not in first]
    found[STYLES] = b"\n".join(found[name] for name in first + others)
    return {
        name: Asset(content, guess_type(name)[0] or "text/plain", sha256(content).hexdigest()[:12])
        for name, content in found.items()
    }


def address(name: str) -> str:
    """Return the path of a static file, which changes with its content: no browser keeps that of an older tarry."""
    return f"{STATIC}{name}?v={assets()[name].hash}"


def early_links() -> str:
    """Return links with which a page that goes on to another one loads the files of that page meanwhile."""
    return "\n".join(
        [
            f'<link rel="icon" href="{address("icon.svg")}" type="image/svg+xml">',
            f'<link rel="preload" href="{address(STYLES)}" as="style">',
            *(f'<link rel="preload" href="{address(each)}" as="script">' for each in SCRIPTS),
        ]
    )


def routes(app: web.Application) -> None:
    """Add the route of all static files."""
    app.router.add_get(STATIC + "{name}", _asset)


async def _asset(request: web.Request) -> web.Response:
    asset = assets().get(request.match_info["name"])
    if asset is None:
        raise web.HTTPNotFound
    kept = {"Cache-Control": KEPT} if request.query.get("v") == asset.hash else None
    return web.Response(body=asset.content, content_type=asset.type, headers=kept)
