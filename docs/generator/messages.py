"""docs/reference/messages.md: log events and errors, with texts from the code and meanings from meanings.toml."""

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.generator.source import LEVELS, Source, Text
from tarry.message.outcomes import _STATES
from tarry.observe.logs import _TRANSITIONS

MEANINGS = Path(__file__).with_name("meanings.toml")
FILE = "docs/generator/meanings.toml"

Meaning = tuple[str, str]
"""The meaning of a message, and the remedy."""

STATES = {str(kind): state for kind, state in _STATES.items()}
TRANSITIONS = {event: LEVELS[level] for event, level in _TRANSITIONS.values()}
"""The level of each event of a state change."""
IGNORED = Text("ignored", "observe.logs.Log.ignored", "{verdict} is ignored: {why}", "DEBUG")
SHOWN_AS = {"refuse": "`tarry:`", "note": "note", "failed": "result `failed`", "skipped": "result `skipped`"}


class Meanings(NamedTuple):
    events: dict[str, Meaning]
    errors: dict[str, dict[str, Meaning]]
    """By section, then by key (`Text.key`)."""
    left_out: dict[str, str]

    @property
    def keys(self) -> dict[str, Meaning]:
        return {key: meaning for section in self.errors.values() for key, meaning in section.items()}

    def leaves_out(self, text: Text) -> bool:
        """Whether left_out lists the text: users do not see it."""
        return any(
            text.key == each or text.name == each or f"{text.place}.".startswith(f"{each}.") for each in self.left_out
        )


class Messages(NamedTuple):
    """The events and errors in the code."""

    events: list[Text]
    errors: list[Text]


def read_meanings(path: Path = MEANINGS) -> Meanings:
    content = tomllib.loads(path.read_text("utf-8"))
    return Meanings(
        {name: (each[0], each[1]) for name, each in content["events"].items()},
        {
            title: {key: (each[0], each[1]) for key, each in section.items()}
            for title, section in content["errors"].items()
        },
        content["left_out"],
    )


def collect(source: Source) -> Messages:
    return Messages(
        [*source.events(), IGNORED],
        [text for text in [*source.errors(), *source.shown()] if has_words(text.template)],
    )


def has_words(template: str) -> bool:
    """Whether a template has words of its own, apart from its values."""
    return re.search(r"[A-Za-z]{2}", re.sub(r"\{[^}]*\}", "", template)) is not None


# missing and outdated meanings


def problems(messages: Messages, meanings: Meanings) -> Iterator[str]:
    """Yield a sentence for each text without a meaning and each meaning without a text."""
    events = {*TRANSITIONS, *(each.name for each in messages.events)}
    for event in sorted(events - meanings.events.keys()):
        yield f"The log event {event!r} has no meaning: add it to [events] in {FILE}, then run `make docs`."
    for event in sorted(meanings.events.keys() - events):
        yield f"The log event {event!r} is not in the code any more: remove it from {FILE}, then run `make docs`."
    keys = {each.key: each for each in messages.errors}
    for key, text in sorted(keys.items()):
        if key not in meanings.keys and not meanings.leaves_out(text):
            yield (
                f"The text {text.template!r} has no meaning: add the key {key!r} to a section of [errors] in {FILE} "
                "(or to [left_out], with the reason), then run `make docs`."
            )
    for key in sorted(meanings.keys.keys() - keys.keys()):
        yield f"No error has the key {key!r} any more: remove it from {FILE}, or rename it, then run `make docs`."
    for each in meanings.left_out:
        if not any(Meanings({}, {}, {each: ""}).leaves_out(text) for text in messages.errors):
            yield f"[left_out] names {each!r}, which is not in the code any more: remove it from {FILE}."


# the page


def parts(messages: Messages, meanings: Meanings) -> dict[str, str]:
    """Return the generated parts of the page, by their names."""
    return {
        "events": "\n".join(_events(messages, meanings)).strip(),
        "errors": "\n".join(_errors(messages, meanings)).strip(),
    }


def _events(messages: Messages, meanings: Meanings) -> Iterator[str]:
    yield "### What happened to a message\n"
    for event in (each for each in meanings.events if each in TRANSITIONS):
        level = TRANSITIONS[event]
        states = sorted({str(STATES[kind]) for kind, (name, _) in _TRANSITIONS.items() if name == event})
        level = {"INFO": "INFO; WARNING after a failure, and with `not_sent` or `not_settled`"}.get(level, level)
        level = "WARNING" if event == "committed" else level  # a plain success is not logged
        yield from _event(event, f"{level}. State `{'` or `'.join(states)}`.", [], meanings.events[event])
    yield "### What went wrong on the way\n"
    for event in (each for each in meanings.events if each not in TRANSITIONS):
        texts = [each for each in messages.events if each.name == event]
        levels = sorted({each.level for each in texts})
        about = sorted({each.about for each in texts}, reverse=True)
        fields = sorted({field for each in texts for field in each.fields} - {"error"})
        more = f" Further fields: `{'`, `'.join(fields)}`." if fields else ""
        facts = f"{' or '.join(levels)}. Names the {' or the '.join(about)}.{more}"
        yield from _event(event, facts, [each.template for each in texts], meanings.events.get(event, ("", "")))


def _event(name: str, facts: str, texts: list[str], meaning: Meaning) -> Iterator[str]:
    yield f"#### `{name}`\n"
    yield f"{facts}\n"
    yield from (f"- {_code(text)}" for text in dict.fromkeys(texts))
    yield f"{chr(10) if texts else ''}{wrapped(meaning[0])}\n"
    yield f"{wrapped(f'**What to do:** {meaning[1]}')}\n"


def _errors(messages: Messages, meanings: Meanings) -> Iterator[str]:
    for title, section in meanings.errors.items():
        yield f"### {title}\n"
        yield "| error | text | meaning | what to do |\n| --- | --- | --- | --- |"
        rows: dict[str, None] = {}  # functions that raise the same error share a row
        for key, (meaning, remedy) in section.items():
            texts = [each for each in messages.errors if each.key == key]
            if texts:
                name = SHOWN_AS.get(texts[0].name, f"`{texts[0].name}`")
                shown = "<br>".join(dict.fromkeys(_code(each.template) for each in texts))
                rows[f"| {name} | {shown} | {_cell(meaning)} | {_cell(remedy)} |"] = None
        yield from rows
        yield ""


def wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def _code(template: str) -> str:
    text = _cell(template)
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
