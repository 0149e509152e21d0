"""docs/reference/messages.md: log events and errors, with meanings from meanings.toml and texts from the code."""

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
LEAST_WORDS, MOST_WORDS = 3, 8
"""The fewest words that the shown beginning of a text has of its own, and the most that it has at all."""
UNFINISHED = {"a", "an", "the", "of", "or", "and", "to", "from", "at", "least", "its", "than", "in", "for"}
"""Words with which a shown beginning does not end."""
OF_COMMANDS = {"refuse", "note", "failed", "skipped"}
"""The functions with which a command shows a text."""


class Meanings(NamedTuple):
    events: dict[str, Meaning]
    sections: dict[str, list[str]]
    """The sections of errors, each with the names of packages, modules or functions."""
    errors: dict[str, str]
    """What the text of an error does not say, by key (`Text.key`)."""
    left_out: dict[str, str]

    def leaves_out(self, text: Text) -> bool:
        """Whether left_out lists the text: users do not see it."""
        return any(text.key == each or text.name == each or is_in(text, each) for each in self.left_out)

    def section_of(self, text: Text) -> str | None:
        """Return the section with the longest name that contains the text; None if there is none."""
        fitting = [
            (len(place), title) for title, listed in self.sections.items() for place in listed if is_in(text, place)
        ]
        return max(fitting)[1] if fitting else None


def is_in(text: Text, place: str) -> bool:
    return f"{text.place}.".startswith(f"{place}.")


class Messages(NamedTuple):
    """The events and errors in the code."""

    events: list[Text]
    errors: list[Text]


def read_meanings(path: Path = MEANINGS) -> Meanings:
    content = tomllib.loads(path.read_text("utf-8"))
    events = {name: (each[0], each[1]) for name, each in content["events"].items()}
    return Meanings(events, content["sections"], content["errors"], content["left_out"])


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
    """Yield a sentence for each event without a meaning, each error without a section, and each unused key."""
    events = {*TRANSITIONS, *(each.name for each in messages.events)}
    for event in sorted(events - meanings.events.keys()):
        yield f"The log event {event!r} has no meaning: add it to [events] in {FILE}, then run `make docs`."
    for event in sorted(meanings.events.keys() - events):
        yield f"The log event {event!r} is not in the code any more: remove it from {FILE}, then run `make docs`."
    for text in messages.errors:
        if not meanings.section_of(text) and not meanings.leaves_out(text):
            yield (
                f"The text {text.template!r} has no section: add {text.place!r} to one of [sections] in {FILE} "
                "(or to [left_out], with the reason), then run `make docs`."
            )
    for key in sorted(meanings.errors.keys() - {each.key for each in messages.errors}):
        yield f"No error has the key {key!r} any more: remove it from {FILE}, or rename it, then run `make docs`."
    for each in meanings.left_out:
        if not any(Meanings({}, {}, {}, {each: ""}).leaves_out(text) for text in messages.errors):
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
        yield from _event(event, f"{level}. State `{'` or `'.join(states)}`.", meanings.events[event])
    yield "### What went wrong on the way\n"
    for event in (each for each in meanings.events if each not in TRANSITIONS):
        texts = [each for each in messages.events if each.name == event]
        about = "" if {each.about for each in texts} == {"message"} else ", of the invocation"
        fields = sorted({field for each in texts for field in each.fields} - {"error"})
        more = f" Fields: `{'`, `'.join(fields)}`." if fields else ""
        facts = f"{' or '.join(sorted({each.level for each in texts}))}{about}.{more}"
        yield from _event(event, facts, meanings.events.get(event, ("", "")))


def _event(name: str, facts: str, meaning: Meaning) -> Iterator[str]:
    yield f"#### `{name}`\n"
    yield f"{wrapped(f'{facts} {meaning[0]} **Remedy:** {meaning[1]}')}\n"


def _errors(messages: Messages, meanings: Meanings) -> Iterator[str]:
    sections: dict[str, dict[str, list[Text]]] = {title: {} for title in meanings.sections}
    for text in messages.errors:
        title = meanings.section_of(text)
        if title and not meanings.leaves_out(text) and (text.name != "note" or text.key in meanings.errors):
            sections[title].setdefault(text.key, []).append(text)
    for title, errors in sections.items():
        yield f"### {title}\n"
        yield from _entries(errors, meanings, with_classes="tarry" not in title)


def _entries(errors: dict[str, list[Text]], meanings: Meanings, *, with_classes: bool) -> Iterator[str]:
    """Yield a line for each function that raises errors; with classes, below the class that it raises first."""
    shown = set[str]()
    for name in dict.fromkeys(texts[0].name if with_classes else "" for texts in errors.values()):
        if name and name not in OF_COMMANDS:
            yield f"`{name}`:\n"
        for key, texts in errors.items():
            begun = [each for each in dict.fromkeys(beginning(each.template) for each in texts) if each not in shown]
            if begun and name in {"", texts[0].name}:
                shown.update(begun)
                sentence = meanings.errors.get(key)
                yield f"- {'<br>'.join(map(_code, begun))}{f': {sentence}' if sentence else ''}"
        yield ""


def beginning(template: str) -> str:
    """Return the beginning of a text: up to its value or its remedy, with at least three words of its own."""
    text = " ".join(template.split())
    for match in re.finditer(r"[.:;] |, got \{| \(|, and |, so ", text):
        part = text[: match.start()]
        own = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^}]*\}", "", part))
        if len(own) >= LEAST_WORDS and all(part.count(opened) == part.count(shut) for opened, shut in ("()", "{}")):
            text = part
            break
    words = text.split(" ")[:MOST_WORDS]
    while words[-1] in UNFINISHED:
        words.pop()
    return " ".join(words)


def wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def _code(template: str) -> str:
    return f"`` {template} ``" if "`" in template else f"`{template}`"
