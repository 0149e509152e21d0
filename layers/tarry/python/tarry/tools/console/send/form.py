"""The form that sends a message, as values: what was typed, what it means, and samples to begin with."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from tarry.failed.text import shortened
from tarry.failed.usage import UsageError
from tarry.record.attribute import ATTRIBUTE
from tarry.tools.local.samples import Sample, read_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

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


@dataclass(frozen=True)
class SampleFile:
    """The samples of an event file, by key and with their beginnings; or why it has none."""

    name: str
    samples: Sequence[tuple[str, str]]


def sample_files(folder: Path | None) -> list[SampleFile]:
    """Return the event files of a project with messages in them. Files that are not SQS events are left out."""
    return [SampleFile(path.name, tuple(_listed(path, samples))) for path, samples in _files(folder)]


def sample_form(folder: Path | None, key: str) -> tuple[MessageForm, list[str]]:
    """Return the form that sends a sample, and hints about it.

    Args:
        folder: The folder of the event files.
        key: The key of the sample: the name of its file and its number.

    Raises:
        UsageError: There is no such sample.
    """
    for path, samples in _files(folder):
        for sample in samples:
            if key == _key(path, sample):
                return _form(sample)
    raise UsageError(f"there is no sample {key!r:.100}")


def _files(folder: Path | None) -> Iterator[tuple[Path, list[Sample]]]:
    if folder is None or not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json"))[:MAX_FILES]:
        try:
            samples = read_samples(path)
        except UsageError:
            continue
        if samples:
            yield path, samples[:MAX_SAMPLES_OF_A_FILE]


def _listed(path: Path, samples: Sequence[Sample]) -> Iterator[tuple[str, str]]:
    for sample in samples:
        yield _key(path, sample), f"{sample.number}: {shortened(sample.body, EXCERPT_LENGTH)}"


def _key(path: Path, sample: Sample) -> str:
    return f"{path.name}:{sample.number}"


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


def at_queue(form: MessageForm, names: Sequence[str]) -> MessageForm:
    """Return the form with a queue of this console: the first one if it names another."""
    return form if form.queue in names or not names else replace(form, queue=names[0])
