"""The list of dead letters with its filter, and the help while a condition is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tools.console.access import console_of
from tarry.tools.console.dead_letters.choices import Choice, choice_of
from tarry.tools.console.dead_letters.filters import problem_of, suggestions
from tarry.tools.console.dead_letters.pages.requested import about, page_number, scanned, scanned_queue_of
from tarry.tools.console.dead_letters.pages.rows import page_of, row_of
from tarry.tools.console.pages import render

if TYPE_CHECKING:
    from aiohttp import web

    from tarry.failed import BadFilter

COMPARED_WHILE_TYPING = 5_000
"""The most dead letters whose bodies are compared while a condition is being typed."""


async def listed(request: web.Request) -> web.Response:
    """Show dead letters, filtered, a hundred at a time."""
    console, queue = console_of(request), await scanned_queue_of(request)
    snapshot = scanned(request, queue.name)
    problems = _problems(request, shows_bodies=console.shows_bodies)
    typed, problem = next(iter(problems.items()), ("", None))
    where = tuple(each for each in choice_of(request.query).where if each not in problems)
    choice = Choice(where=where, everything=not where)
    matching = await console.compute(snapshot.matching, choice.selection())
    page = page_of(matching.dead_letters, page_number(request))
    return render(
        request,
        "dead_letters/list.html",
        status=200 if problem is None else 400,
        **about(request, queue),
        choice=choice,
        conditions=[(each, choice.without(each).query) for each in choice.where],
        typed=typed,
        problem=problem and str(problem),
        not_compared=matching.not_compared,
        page=page._replace(rows=[row_of(each) for each in page.rows]),
    )


def _problems(request: web.Request, *, shows_bodies: bool) -> dict[str, BadFilter]:
    """Return why conditions of the address cannot be used, by the condition."""
    found = {each: problem_of(each, shows_bodies=shows_bodies) for each in choice_of(request.query).where}
    return {each: problem for each, problem in found.items() if problem is not None}


async def condition(request: web.Request) -> web.Response:
    """Say what a condition that is being typed would do: an error, how many it matches, what can come next."""
    console = console_of(request)
    name = request.match_info["queue"]
    snapshot = scanned(request, name)
    problems = _problems(request, shows_bodies=console.shows_bodies)
    choice = Choice(where=tuple(each for each in choice_of(request.query).where if each not in problems))
    typed = request.query.getall("where", [""])[-1]
    problem = problems.get(typed.strip())
    found = await console.compute(suggestions, typed, snapshot, shows_bodies=console.shows_bodies)
    count, is_slow = None, False
    if problem is None and typed.strip():
        conditions, is_large = choice.selection().conditions, len(snapshot) > COMPARED_WHILE_TYPING
        # A regular expression that is not complete can take for ever, in which no other page is answered.
        is_slow = any(each.operator == "~" or (each.needs_body and is_large) for each in conditions)
    if problem is None and typed.strip() and not is_slow:
        count = len((await console.compute(snapshot.matching, choice.selection())).dead_letters)
    return render(
        request,
        "dead_letters/condition.html",
        problem=problem and str(problem),
        count=count,
        is_slow=is_slow,
        total=len(snapshot),
        suggestions=found,
    )
