"""The retry policy of each consumer of the template, as ``tarry plan`` draws it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.failed.usage import UsageError
from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE, Problem, console_of
from tarry.tools.console.pages import explained, inline
from tarry.tools.local.functions.code import Overrides
from tarry.tools.plan.drawing import picture_of
from tarry.tools.plan.request import subjects_in
from tarry.tools.plan.text import timeline_text
from tarry.tools.template.model import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohttp import web

    from tarry.tools.console.access import Console
    from tarry.tools.template import Template

AT_ONCE = 2
"""The most functions whose code is imported at once."""


class ReadPolicies(NamedTuple):
    """The policies of a function on its queues, hints for the developer, and why there are none."""

    policies: Sequence[Mapping[str, Any]]
    notes: list[str]
    problem: str = ""


class PolicyReader:
    """Reads policies in other processes: few at once, and each function once, however many pages wait for it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[ReadPolicies]] = {}

    async def read(self, template: Template, function: str) -> ReadPolicies:
        """Return the policies of a function as its code is now."""
        task = self._tasks.get(function)
        if task is None:
            task = self._tasks[function] = asyncio.create_task(self._read(template, function))
            task.add_done_callback(lambda _: self._tasks.pop(function, None))
        return await asyncio.shield(task)  # a page that is left does not end the work that others wait for

    async def _read(self, template: Template, function: str) -> ReadPolicies:
        async with self._slots:
            return await self._console.in_thread(policies_of, template, function)

    async def page(self, request: web.Request) -> web.Response:
        template, name = self._console.template, request.match_info["function"]
        if template is None or name not in consumers_of(template):
            raise Problem(f"The template of this console has no function {name!r:.100} with a queue.", 404)
        found = await self.read(template, name)
        return pages.render(request, "policy/page.html", name=name, **found._asdict())


def consumers_of(template: Template | None) -> dict[str, list[str]]:
    """Return the functions of a template that consume a queue, by name, with their queues."""
    found: dict[str, list[str]] = {}
    for mapping in template.mappings if template else ():
        if template and (function := template.functions.get(mapping.function)) is not None:
            queues = found.setdefault(function.logical_id, [])
            queues += [mapping.queue][: mapping.queue not in queues]
    return found


def policies_of(template: Template, function: str) -> ReadPolicies:
    """Return the policies of a function. Imports its code in another process."""
    notes: list[str] = []
    try:
        subjects = subjects_in(template, function, None, Overrides(), notes.append)
    except (UsageError, TemplateError) as error:
        details = getattr(error, "details", "")
        return ReadPolicies([], notes, "\n".join(filter(None, (explained(error), details))))
    policies = [
        {
            "queue": each.timeline.queue.name,
            "picture": inline(picture_of(each.timeline, today=each.today)),
            "text": timeline_text(each.timeline, each.today),
            "warnings": each.warnings(None),
        }
        for each in subjects
    ]
    return ReadPolicies(policies, notes)


def routes(app: web.Application) -> None:
    reader = PolicyReader(app[CONSOLE])
    app.router.add_get("/policies", _list)
    app.router.add_get("/policies/{function}", reader.page)


async def _list(request: web.Request) -> web.Response:
    return pages.render(request, "policy/list.html", consumers=consumers_of(console_of(request).template))
