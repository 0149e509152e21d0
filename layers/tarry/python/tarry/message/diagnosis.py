"""Diagnosis of an error: its type, message, traceback and fingerprint as text, pydantic's without the input."""

from __future__ import annotations

import hashlib
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

from tarry.message.outcomes import Signal
from tarry.support.guards import chain, is_a, leaves_of, name_of, origin_of, text_of, traceback_of, type_name
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import CodeType, TracebackType

    from pydantic import ValidationError

MOST_PROBLEMS = 20


def details_of(error: ValidationError) -> list[Any]:
    """Return pydantic's details of a validation error, without the input: it may be secret, and large."""
    return error.errors(include_input=False, include_url=False)


def problems_of(error: ValidationError, names: Collection[str]) -> str:
    """Return the places and reasons of a validation error; paths show only ``names``, since keys may be secret."""
    found = [_problem(each, names) for each in details_of(error)[:MOST_PROBLEMS]]
    if (more := error.error_count() - len(found)) > 0:
        found.append(f"and {more} more")
    return "; ".join(found)


def _problem(details: Any, names: Collection[str]) -> str:
    text = details["msg"]
    if details["type"] == "union_tag_invalid":  # the only message of pydantic that quotes the input
        tags = details["ctx"]
        text = f"Input tag found using {tags['discriminator']} does not match any of: {tags['expected_tags']}"
    path = ".".join(str(part) if isinstance(part, int) or part in names else "<key>" for part in details["loc"])
    return f"{path}: {text}" if path else text


def _names() -> set[str]:
    """Return the names of all models in the process, of their fields, and the aliases of these."""
    from pydantic import BaseModel

    names, todo = set[str](), [BaseModel]
    while todo:
        model = todo.pop()
        todo += model.__subclasses__()
        names.add(model.__name__)
        for name, field in getattr(model, "__pydantic_fields__", {}).items():
            names.update(each for each in (name, field.alias, field.validation_alias) if isinstance(each, str))
    return names


_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_LIBRARIES = (
    _OURS,
    os.path.join(os.path.dirname(os.__file__), ""),
    "/var/runtime/",
    "/var/lang/",
    "<",  # frozen or generated code, such as the __init__ of a dataclass (<string>)
)
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")

MAX_MESSAGE_CHARACTERS = 1_048_576  # the largest message of SQS in bytes; no failure record can contain a longer text
MAX_TRACEBACK_CHARACTERS = 262_144
MAX_LEAVES = 20
MAX_GROUP_DEPTH = 5
MAX_LINKS_SHOWN = 50  # the most errors of a chain that a traceback shows; the last ones

MAX_CACHED_TRACEBACKS = 64
MAX_CACHED_FRAMES = 30  # the most frames of a traceback that is cached

MAX_LINE_BYTES = 1_024
"""The most bytes of an error's text in a log field. With `MAX_LOGGED_TEXT_BYTES` it is below 4 KiB (SPEC I2)."""
MAX_LOGGED_TEXT_BYTES = 2_048  # the most bytes of the texts of all errors of a chain in the traceback of a log line
MAX_LOGGED_CAUSE_BYTES = 512  # the most bytes of the text of each error that led to the last one
MAX_LOGGED_TRACEBACK_BYTES = 16_384  # the most bytes of a traceback in a log line; the innermost frames are kept


class Diagnosis(Value):
    """An error as text, without a reference to the error or its frames.

    ``traceback`` has only frames and types; the text is in ``message``. ``logged_traceback`` has frames, types and
    texts, for the log; it is empty for a signal and for an error without frames of the user's code.
    """

    type: str
    message: str
    traceback: str
    fingerprint: str
    logged_traceback: str = ""

    def line(self, limit: int | None = None) -> str:
        """Return ``Type: message``, the last line of a traceback, with at most ``limit`` characters of the message."""
        return f"{self.type}: {self.message[:limit]}" if self.message else self.type

    @property
    def logged_line(self) -> str:
        """The `line`, cut to the length that the log shows."""
        return shortened(self.line(MAX_LINE_BYTES), MAX_LINE_BYTES)


class Diagnoses:
    """The diagnoses of one invocation. A batch handler fails all its messages with one error, diagnosed once."""

    def __init__(self) -> None:
        self._error: BaseException | None = None  # the last one, with its traceback and diagnosis
        self._trace: TracebackType | None = None
        self._diagnosis: Diagnosis

    def of(self, error: BaseException) -> Diagnosis:
        """Return the diagnosis of ``error``; the last one is reused unless the error was raised once more since."""
        trace = traceback_of(error)
        if error is not self._error or trace not in (None, self._trace):
            self._error, self._trace, self._diagnosis = error, trace, diagnose(error)
        return self._diagnosis

    def drop_traceback(self) -> None:
        """Drop the traceback of the last error; if the error is raised once more, it is diagnosed anew."""
        self._trace = None


def diagnose(error: BaseException) -> Diagnosis:
    """Return the diagnosis of an error. It does not raise, even if ``__str__`` raises or a frame is broken."""
    name, message = type_name(error), error_text(error)
    trace = handler_frames(error)
    stack = _stack_of(trace)
    traceback, logged = _tracebacks(error, name, message, trace, stack)
    return Diagnosis(name, message, traceback, _fingerprint(error, name, trace, stack), logged)


def error_text(error: BaseException) -> str:
    """Return the text of an error; for an exception group, followed by the texts of its leaves."""
    text = _own_text(error, MAX_MESSAGE_CHARACTERS)
    if is_a(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(_within(error, MAX_GROUP_DEPTH, iter(range(MAX_LEAVES))))}"
    return text[:MAX_MESSAGE_CHARACTERS]


def _own_text(error: BaseException, limit: int) -> str:
    """Return the text of an error itself; that of pydantic's ``ValidationError`` is given without the input."""
    pydantic = sys.modules.get("pydantic_core")
    if pydantic is None or type(error) is not pydantic.ValidationError:
        return text_of(error, limit)
    invalid: Any = error
    count = invalid.error_count()
    title = f"{count} validation error{'s' * (count > 1)} for {invalid.title}"
    return f"{title}: {problems_of(invalid, _names())}"[:limit]


def _within(group: BaseExceptionGroup[BaseException], levels: int, places: Iterator[int]) -> list[str]:
    """Return the texts of the errors in a group and its nested groups; each takes one of ``places``."""
    if not levels:
        return ["..."]
    texts = []
    for error, _ in zip(leaves_of(group), places, strict=False):
        inner = _within(error, levels - 1, places) if is_a(error, BaseExceptionGroup) else []
        text = _own_text(error, MAX_MESSAGE_CHARACTERS)
        texts.append(": ".join([type_name(error), *filter(None, [text, "; ".join(inner)])]))
    return texts


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the first leaves of a group, at any depth, at most `MAX_LEAVES`."""
    leaves: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo and len(leaves) < MAX_LEAVES:
        error = todo.pop()
        if is_a(error, BaseExceptionGroup):
            todo += reversed(leaves_of(error))
        else:
            leaves.append(error)
    return leaves


def shortened(text: str, limit_bytes: int) -> str:
    """Return the beginning of ``text``, at most ``limit_bytes`` in UTF-8, with an ellipsis if it is cut."""
    if len(text) <= limit_bytes and (text.isascii() or len(text.encode("utf-8", "replace")) <= limit_bytes):
        return text
    kept = text[:limit_bytes].encode("utf-8", "replace")[: limit_bytes - 3]
    return kept.decode("utf-8", "ignore") + "..."


class _Stack:
    """The text and the fingerprint of a traceback, kept for the next error that is raised at the same place."""

    def __init__(self, codes: list[CodeType]) -> None:
        self._codes = codes  # held, so that their ids are not given to other codes
        self._text: str | None = None
        self.last = "", ""  # the type of the last error that was raised there, and its fingerprint

    def frames(self, trace: TracebackType | None) -> str:
        """Return the frames as text; ``trace`` is a traceback of this stack."""
        if self._text is None:
            from traceback import format_tb

            self._text = "".join(format_tb(trace))
        return self._text


_stacks: dict[tuple[object, ...], _Stack] = {}  # by the place of each frame: places are few, and formatting is slow


def _stack_of(trace: TracebackType | None) -> _Stack:
    codes: list[CodeType] = []
    places: list[object] = []
    while trace is not None:
        if len(codes) == MAX_CACHED_FRAMES:
            return _Stack([])
        code, module = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__")
        codes.append(code)
        places += id(code), trace.tb_lasti, trace.tb_lineno, module if type(module) is str else None
        trace = trace.tb_next
    if (known := _stacks.get(key := tuple(places))) is not None:
        return known
    if len(_stacks) >= MAX_CACHED_TRACEBACKS:
        _stacks.clear()
    stack = _stacks[key] = _Stack(codes)
    return stack


def _tracebacks(
    error: BaseException, name: str, message: str, trace: TracebackType | None, stack: _Stack
) -> tuple[str, str]:
    """Return the traceback of an error and chain without texts, and for the log; both empty if it was never raised."""
    try:
        links = [(name, stack.frames(trace), error), *_origins(error)]
        if len(links) == 1 and traceback_of(error) is None:
            return "", ""
        leaves = _leaves(error) if is_a(error, BaseExceptionGroup) else []
        below = [_without_texts([_link(leaf), *_origins(leaf)]) for leaf in leaves]
        bare = _OF_GROUP.join([_without_texts(links), *below])
        has_place = links[0][1] != "" and not is_a(error, Signal)
        return _end(bare, MAX_TRACEBACK_CHARACTERS), _logged(links, message, below) if has_place else ""
    except Exception as failure:  # noqa: BLE001 a broken frame, a loader that cannot read its source
        return f"<{name_of(type(failure))} while describing it>", ""


_LED_TO, _OF_GROUP = "\n\nwhich led to\n\n", "\n\none of whose errors is\n\n"

_Link = tuple[str, str, BaseException]  # an error of a chain: its type, its frames as text, and the error itself


def _origins(error: BaseException) -> list[_Link]:
    """Return the errors that led to an error, the last raised first."""
    if origin_of(error) is None:
        return []
    return [_link(origin) for origin in islice(chain(error), 1, MAX_LINKS_SHOWN)]


def _link(error: BaseException) -> _Link:
    trace = handler_frames(error)
    return type_name(error), _stack_of(trace).frames(trace), error


def _without_texts(links: Sequence[_Link]) -> str:
    return _LED_TO.join([f"{frames}{name}" for name, frames, _ in reversed(links)])


def _logged(links: Sequence[_Link], message: str, below: Sequence[str]) -> str:
    """Return the traceback in Python's format, with as much of each text as fits."""
    left, parts = MAX_LOGGED_TEXT_BYTES, list[str]()
    for index, (name, frames, link) in enumerate(links):
        most = min(left, MAX_LOGGED_CAUSE_BYTES) if index else left - (MAX_LOGGED_CAUSE_BYTES if len(links) > 1 else 0)
        text = shortened(_own_text(link, most) if index else message, most) if most > 3 else ""
        left -= len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        head = "Traceback (most recent call last):\n" if frames else ""
        parts.append(f"{head}{frames}{name}: {text}" if text else f"{head}{frames}{name}")
    return _end(_OF_GROUP.join([_LED_TO.join(reversed(parts)), *below]), MAX_LOGGED_TRACEBACK_BYTES)


def _end(text: str, limit_characters: int) -> str:
    """Return the end of a traceback, from a frame on; of a single frame that is too long, the beginning."""
    if len(text) <= limit_characters:
        return text
    innermost = text.rfind('  File "')
    if 0 <= innermost < len(text) - limit_characters + 4:
        return text[innermost : innermost + limit_characters]
    return "...\n" + text[4 - limit_characters :]


def handler_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback from the handler on, without tarry's frames that called it."""
    trace = traceback_of(error)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def fingerprint(error: BaseException) -> str:
    """Return a hash of the error's type and place; the text does not count.

    The place is the chain of the user's own frames, with lines counted from the top of each function: an edit elsewhere
    in the file, or another version of a library or of Python, does not change the hash. (Exception: Python 3.11 to 3.13
    number the lines of some multi-line statements differently, such as ``assert`` or ``with`` with several managers.)
    """
    trace = handler_frames(error)
    return _fingerprint(error, type_name(error), trace, _stack_of(trace))


def _fingerprint(error: BaseException, name: str, trace: TracebackType | None, stack: _Stack) -> str:
    if stack.last[0] == name and not is_a(error, BaseExceptionGroup):
        return stack.last[1]
    frames = _places(trace)
    own = dict.fromkeys(place for place, is_own in frames if is_own)  # a recursion is one place at any depth
    leaves = sorted({fingerprint(leaf) for leaf in _leaves(error)}) if is_a(error, BaseExceptionGroup) else []
    library = [place.rpartition(":")[0] for place, _ in frames[-1:]]  # without the line, which differs between versions
    text = "\n".join([name, *leaves, *(own or library)])
    found = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    if not leaves:  # those of a group may be others at the next time
        stack.last = name, found
    return found


def _places(trace: TracebackType | None) -> list[tuple[str, bool]]:
    """Return the places of a traceback, each with whether it is in the user's own code."""
    places: list[tuple[str, bool]] = []
    name: str
    top: int
    while trace is not None:
        code = trace.tb_frame.f_code
        if places and code.co_name in _COMPREHENSIONS:
            places.pop()  # from Python 3.12 on, a comprehension has no frame of its own
        else:
            module = text_of(trace.tb_frame.f_globals.get("__name__", ""), 200)
            name, top = f"{module}:{_qualified_name(code)}", code.co_firstlineno
        line = trace.tb_lineno or top  # code inserted by instrumentation has no line
        is_library = code.co_filename.startswith(_LIBRARIES) or "-packages" in code.co_filename
        places.append((f"{name}:{line - top}", not is_library))
        trace = trace.tb_next
    return places


def _qualified_name(code: CodeType) -> str:
    """Return the qualified name without enclosing comprehensions, as Python 3.12 and later have it."""
    name = code.co_qualname
    for comprehension in _COMPREHENSIONS:
        name = name.replace(f"{comprehension}.", "")
    return name
