"""Rendering: templates with escaped text, pictures, the layout of all pages, and pages about problems."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from tarry.failed.text import attempts_of, brief_failure, coarse, duration, minutes, origin_name, printable, when
from tarry.tools.common.explaining import aws_line, usage_line
from tarry.tools.console.access import Console, P, Problem, T, console_of
from tarry.tools.console.security import (
    CSRF_FIELD,
    GATE,
    STATIC,
    TOKEN_PATH,
    USED,
    Handler,
    RefusedRequest,
    address,
    assets,
)
from tarry.tools.story.svg import style


def routes(app: web.Application) -> None:
    app.router.add_get(TOKEN_PATH, open_session)
    app.router.add_get("/pictures.css", _style_sheet)


async def open_session(request: web.Request) -> web.Response:
    """Turn the one-time token of the address into a cookie.

    The answer is a page that goes on to the overview, not a redirect: a browser sends no strict cookie with a redirect
    of a link in another site's page, such as a terminal in a browser.
    """
    gate = request.app[GATE]
    session = gate.redeem(request.query.get("token", ""))
    if session is None:
        raise RefusedRequest(USED, 401)
    response = _response(environment().get_template("opened.html").render(), 200)
    response.set_cookie(gate.cookie, session, httponly=True, samesite="Strict", path="/")
    return response


async def _style_sheet(request: web.Request) -> web.Response:
    """Answer with the rules of pictures, which hold within pictures only: inline styles do not run in the console."""
    return web.Response(text=f".picture {{\n{style()}\n}}\n", content_type="text/css")


def inline(svg: str) -> Markup:
    before, _, rest = svg.partition("<style>")
    after = rest.partition("</style>\n")[2]
    return Markup((before + after).replace("<svg ", '<svg class="picture" ', 1))


BUG = "tarry failed on this page: it is a bug. The terminal of tarry console has the traceback."
IN_PLACE_OF_PROBLEMS = {"HX-Retarget": "#problem", "HX-Reswap": "innerHTML"}
"""Headers with which htmx shows an answer at the top of the page."""
_log = logging.getLogger(__name__)


def render(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """Answer with a page, or with its block ``content`` alone to a request of htmx: its template extends ``base``."""
    console = console_of(request)
    values |= {
        "base": "fragment.html" if is_fragment(request) else "layout.html",
        "console": console,
        "place": console.place,
        "can_write": console.can_write,
        "csrf": request.app[GATE].csrf_of(request),
        "here": request.path,
    }
    return _response(environment().get_template(template).render(values), status)


def fragment(template: str, /, **values: Any) -> str:
    """Return a template as HTML, the same for all browsers: the script of the page adds the CSRF token to forms."""
    return environment().get_template(template).render(csrf="", **values)


def see(path: str) -> web.HTTPSeeOther:
    return web.HTTPSeeOther(path)


def is_fragment(request: web.Request) -> bool:
    """Whether htmx asks for a part of a page."""
    return "HX-Request" in request.headers and "HX-History-Restore-Request" not in request.headers


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into pages that say what is wrong and what to do; for a request of htmx, into the text alone."""
    try:
        return await handler(request)
    except RefusedRequest as error:
        values = {"text": error.text, "status": error.status, "is_fragment": is_fragment(request)}
        response = _response(environment().get_template("refused.html").render(values), error.status)
    except Problem as error:
        response = _problem(request, error.text, error.status)
    except web.HTTPException as error:
        if error.status < 400 or request.path.startswith(STATIC):
            raise
        response = _problem(request, "This page does not exist." if error.status == 404 else error.reason, error.status)
    except ConnectionResetError:  # the page was left
        raise
    except Exception as error:  # noqa: BLE001 the page says what it can; a bug is logged
        found = explained(error)
        if found is None:
            _log.exception("a page failed: %s", request.path)
        response = _problem(request, found or BUG, 502 if found else 500)
    if is_fragment(request):
        response.headers.update(IN_PLACE_OF_PROBLEMS)
    return response


def _problem(request: web.Request, text: str, status: int) -> web.Response:
    return render(request, "problem.html", status=status, text=text)


def explained(error: Exception) -> str | None:
    """Return the text of an error of the user, of AWS or of `tarry.failed`, as a sentence; None for a bug."""
    text = usage_line(error) or aws_line(error, str)
    return None if text is None else sentence(text)


async def asked(console: Console, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, str]:
    """Run a function that makes requests; return its result, or why it failed as a sentence. A bug is raised."""
    try:
        return await console.in_thread(function, *args, **kwargs), ""
    except Exception as error:
        if (problem := explained(error)) is None:
            raise
        return None, problem


def sentence(text: object) -> str:
    return str(text)[:1].upper() + str(text)[1:].rstrip(".") + "."


def path_of_message(message_id: str) -> str:
    return f"/message/{quote(message_id, safe='', errors='replace')}"


def _response(html: str, status: int) -> web.Response:
    # A body may have a lone surrogate, which UTF-8 has not.
    return web.Response(
        body=html.encode("utf-8", "backslashreplace"), status=status, content_type="text/html", charset="utf-8"
    )


@cache
def environment() -> Environment:
    """Return the environment of all templates. Text is escaped; a name that does not exist is an error."""
    found = Environment(
        loader=PackageLoader("tarry.tools.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "seen_at": lambda dead_letter: (when(dead_letter) or "")[:19].replace("T", " "),
        "error": lambda dead_letter: brief_failure(dead_letter.failure),
        "origin": origin_name,
        "attempts": lambda dead_letter: attempts_of(dead_letter.failure) if dead_letter.failure else "",
        "message_path": path_of_message,
        "visible": printable,
        "number": "{:,}".format,
    }
    of_this_name = (visible_lines, duration, coarse, moment, ago, minutes, plural, rate, clock_time)
    found.filters |= {each.__name__: each for each in of_this_name}
    found.globals |= {"csrf_field": csrf_field, "static": address, "now": time.time}
    return found


@pass_context
def csrf_field(context: Context) -> Markup:
    """Return the hidden field that every form with POST has."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, context.get("csrf", ""))


def visible_lines(text: str) -> str:
    """Return a text with its lines and tabs; other control characters and marks of direction are escaped."""
    return printable(text, keep="\n\t")


def rate(value: float) -> str:
    """Return a number of messages a minute, with one digit after the point below ten."""
    return f"{value:,.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s'[: count != 1]}"


def moment(epoch_seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(epoch_seconds)) + " UTC"


def clock_time(epoch_seconds: float) -> str:
    """Return a time of today in UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(epoch_seconds))


def ago(epoch_seconds: float) -> str:
    seconds = time.time() - epoch_seconds
    return "just now" if seconds < 1 else f"{coarse(seconds)} ago"


def prepare() -> None:
    """Compile the templates of the first page before it is asked for."""
    assets()
    for each in ("layout.html", "fragment.html", "overview/page.html"):
        environment().get_template(each)
