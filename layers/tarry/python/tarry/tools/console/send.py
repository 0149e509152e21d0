"""The form that sends a message."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from aiohttp import web

from tarry.errors import TarryError
from tarry.failed.text import shortened
from tarry.failed.usage import UsageError
from tarry.record.attribute import ATTRIBUTE
from tarry.tools.console import pages
from tarry.tools.console.access import Console, Problem, console_of
from tarry.tools.console.pages import explained, sentence
from tarry.tools.console.security import needs_write
from tarry.tools.local.aws.client import target_of
from tarry.tools.local.samples import Sample, read_samples

SAMPLES_FOLDER = "events"
MAX_FILES = 100
MAX_SAMPLES_OF_A_FILE = 100
EXCERPT_LENGTH = 60
SYNTAX = "one attribute a line: name=text, name:Number=7 or name:Binary=base64"


@dataclass(frozen=True)
class MessageForm:
    """The fields of the form, as typed."""

    queue: str = ""
    body: str = ""
    group: str = ""
    attributes: str = ""
    delay: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> MessageForm:
        """Return the form of a request. A browser sends line ends as CR LF, whatever was typed."""
        texts = {name: str(fields.get(name, "")) for name in cls.__dataclass_fields__}
        return cls(**{name: text.replace("\r\n", "\n") for name, text in texts.items()})

    @property
    def delay_seconds(self) -> float | None:
        """The delay; None if none is given. Raises `UsageError`."""
        if not self.delay.strip():
            return None
        try:
            return float(self.delay)
        except ValueError:
            raise UsageError(f"the delay must be a number of seconds, got {self.delay!r:.50}") from None

    @property
    def attribute_values(self) -> dict[str, Any]:
        """The message attributes, as `tarry.Queue.send` takes them. Raises `UsageError`."""
        found: dict[str, Any] = {}
        for line in self.attributes.split("\n"):
            if line.strip():
                name, value = _attribute(line)
                if name in found:
                    raise UsageError(f"the attribute {name!r:.100} is given twice")
                found[name] = value
        return found


def _attribute(line: str) -> tuple[str, Any]:
    left, equals, text = line.partition("=")
    name, colon, kind = left.strip().partition(":")
    if not (equals and name):
        raise UsageError(f"{line!r:.100} is not an attribute: give {SYNTAX}")
    if not colon or kind == "String":
        return name, text
    try:
        if kind == "Number":
            return name, Decimal(text.strip())
        if kind == "Binary":
            return name, base64.b64decode(text.strip(), validate=True)
    except InvalidOperation:
        raise UsageError(f"the attribute {name!r:.100} is not a number: {text!r:.100}") from None
    except (binascii.Error, ValueError):
        raise UsageError(f"the attribute {name!r:.100} is not base64: {text!r:.100}") from None
    raise UsageError(f"the attribute {name!r:.100} has the type {kind!r:.50}: give {SYNTAX}")


def sample_files(folder: Path | None) -> dict[str, dict[str, str]]:
    """Return the samples of each event file of a project, by key, with their beginnings; other files are left out."""
    found: dict[str, dict[str, str]] = {}
    for name, key, sample in _samples(folder):
        found.setdefault(name, {})[key] = f"{sample.number}: {shortened(sample.body, EXCERPT_LENGTH)}"
    return found


def sample_form(folder: Path | None, key: str) -> tuple[MessageForm, list[str]]:
    """Return the form that sends a sample of the event files in a folder, and hints about it. Raises `UsageError`."""
    found = next((sample for _, each, sample in _samples(folder) if each == key), None)
    if found is None:
        raise UsageError(f"there is no sample {key!r:.100}")
    return _form(found)


def _samples(folder: Path | None) -> Iterator[tuple[str, str, Sample]]:
    """Yield the samples, each with the name of its file and its key."""
    for path in sorted(folder.glob("*.json"))[:MAX_FILES] if folder is not None else ():
        with suppress(UsageError):
            for sample in read_samples(path)[:MAX_SAMPLES_OF_A_FILE]:
                yield path.name, f"{path.name}:{sample.number}", sample


def _form(sample: Sample) -> tuple[MessageForm, list[str]]:
    lines, hints, labelled = list[str](), list[str](), list[str]()
    for name, each in sample.attributes.items():
        kind, _, label = str(each["DataType"]).partition(".")
        if name == ATTRIBUTE:
            hints.append(f"The sample's {ATTRIBUTE} attribute is left out: tarry writes it.")
            continue
        text = base64.b64encode(each["BinaryValue"]).decode() if kind == "Binary" else str(each["StringValue"])
        if "\n" in text:
            hints.append(f"The attribute {name} is left out: it has several lines.")
            continue
        if label:
            labelled.append(f"{name} as {kind}, not {kind}.{label}")
        lines.append(f"{name}={text}" if kind == "String" else f"{name}:{kind}={text}")
    if labelled:
        hints.append(f"The form has no types with a label, so it sends {', '.join(labelled)}.")
    form = MessageForm(sample.queue, sample.body, sample.group_id or "", "\n".join(lines))
    return form, hints


MAX_DELAY_SECONDS = 43_200
MAX_REMEMBERED = 100
"""The forms that are remembered, so that a double click or a reload does not send a message twice."""
SENDS = web.AppKey("sends", dict[tuple[str, MessageForm], "asyncio.Task[str]"])


def routes(app: web.Application) -> None:
    app[SENDS] = {}
    app.router.add_get("/send", _page)
    app.router.add_post("/send", _send)


def addresses_of(console: Console) -> dict[str, str]:
    """Return the addresses of the queues that a message can be sent to, by name: none of a dead-letter queue."""
    dead = {each.dead_letter_queue for each in console.queues}
    return {each.name: each.address for each in console.queues if each.name and each.address and each.name not in dead}


async def _page(request: web.Request) -> web.Response:
    console, hints = console_of(request), list[str]()
    form = MessageForm.of(request.query)
    if sample := request.query.get("sample"):
        form, hints = await console.compute(sample_form, _folder(console), sample)
    names = [*addresses_of(console)]
    if names and form.queue not in names:  # of a sample of another project, or none
        form = replace(form, queue=names[0])
    return await _rendered(request, form, hints=hints, sample=sample or "")


@needs_write
async def _send(request: web.Request) -> web.Response:
    addresses = addresses_of(console_of(request))
    given = await request.post()
    form = MessageForm.of(given)
    if form.queue not in addresses:
        if form.queue in console_of(request).dead_letter_queues:
            raise Problem(f"{form.queue} is a dead-letter queue: this form sends no messages to one.", 400)
        raise Problem(f"This console has no queue {form.queue!r:.100}.", 404)
    try:
        message_id = await _sent_once(request, str(given.get("once", "")), addresses[form.queue], form)
    except (UsageError, TarryError, ValueError, TypeError) as error:
        text = explained(error) or sentence(error)
        return await _rendered(request, form, problem=text, status=400)
    return await _rendered(request, form, sent=message_id)


async def _sent_once(request: web.Request, once: str, address: str, form: MessageForm) -> str:
    """Send the message of a form, unless the same form was sent already; return the id of the message."""
    console, sends, key = console_of(request), request.app[SENDS], (once, form)
    if not once or key not in sends or (sends[key].done() and sends[key].exception()):
        while len(sends) >= MAX_REMEMBERED:
            sends.pop(next(iter(sends)))
        sends[key] = asyncio.create_task(console.in_thread(_sent, console, address, form))
    return await asyncio.shield(sends[key])


def _sent(console: Console, address: str, form: MessageForm) -> str:
    """Send a message; return its id. Raises the errors of `tarry.Queue.send`."""
    delay, attributes = form.delay_seconds, form.attribute_values
    group = form.group or None
    return target_of(console.client("sqs"), address, group).send(form.body, delay, attributes, group)


async def _rendered(request: web.Request, form: MessageForm, *, status: int = 200, **values: Any) -> web.Response:
    console = console_of(request)
    names = [*addresses_of(console)]
    files = await console.compute(sample_files, _folder(console))
    shown = {"hints": [], "sample": "", "sent": "", "problem": "", **values}
    return pages.render(
        request,
        "send/page.html",
        status=status,
        form=form,
        queues=names,
        fifo=[each for each in names if each.endswith(".fifo")],
        files=files,
        syntax=SYNTAX,
        max_delay=MAX_DELAY_SECONDS,
        once=secrets.token_urlsafe(8),
        **shown,
    )


def _folder(console: Console) -> Path | None:
    return None if console.template is None else console.template.path.parent / SAMPLES_FOLDER
