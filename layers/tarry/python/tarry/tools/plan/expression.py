"""A backoff from text, as the command line has it: a call of one of tarry's backoffs with literal arguments."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tarry.decide.backoff import Exponential, Fixed, Linear, Schedule
from tarry.errors import ConfigurationError
from tarry.failed.text import shortened
from tarry.failed.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.decide.backoff import Backoff

MAKERS: dict[str, Callable[..., Backoff]] = {
    "Fixed": Fixed,
    "Linear": Linear,
    "Exponential": Exponential,
    "Schedule": Schedule,
    "Schedule.rocketmq": Schedule.rocketmq,
}
MOST_CHARACTERS = 10_000
EXAMPLE = 'Exponential(30, 3, 900, jitter="equal")'


def backoff_from(text: str) -> Backoff:
    """Return the backoff that an expression describes. No code runs but the constructor.

    Raises:
        UsageError: The text is not a call of a backoff of tarry, or its arguments are not accepted.
    """
    call = _parsed(text)
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    if not isinstance(call, ast.Call) or name not in MAKERS:
        raise _refused(text, f"it must be one of {', '.join(MAKERS)} with its arguments")
    try:
        positional = [ast.literal_eval(each) for each in call.args]
        named: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ValueError("**")
            named[keyword.arg] = ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise _refused(text, "its arguments must be numbers, strings or lists, written out") from None
    try:
        return MAKERS[name](*positional, **named)
    except ConfigurationError as error:
        raise _refused(text, str(error)) from None
    except TypeError as error:
        raise _refused(text, str(error).replace("__init__()", name).replace(f"{name}.{name}", name)) from None


def _parsed(text: str) -> ast.expr:
    if len(text) > MOST_CHARACTERS:
        raise _refused(text, f"it is longer than {MOST_CHARACTERS:,} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(text, "it is not an expression of Python") from None


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--backoff {shortened(text, 100)}: {why}. An example: --backoff '{EXAMPLE}'")
