"""Keys of a message on the lines that its handler logs with Powertools' `Logger`.

Powertools keeps keys of ``append_keys`` for the whole process, and keys of ``thread_safe_append_keys`` in the current
context. Each run of a handler has a context of its own, so the keys that are set in it are on its lines alone.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from tarry.message.message import Message

KEYS = ("message_id", "delivery_id", "queue", "attempt", "group_id")

_found: list[Any] = []  # Powertools' formatters in this process
_loggers: int | None = None  # how many loggers there were at the last search


def formatters() -> list[Any]:
    """Return Powertools' formatters of the loggers in this process; a new logger leads to a new search."""
    global _loggers  # noqa: PLW0603 like the loggers, of the process
    loggers = logging.root.manager.loggerDict
    if len(loggers) != _loggers:
        _loggers = len(loggers)
        module = sys.modules.get("aws_lambda_powertools.logging.formatter")
        kind = getattr(module, "LambdaPowertoolsFormatter", ())  # () if it is being imported, or its import failed
        _found[:] = {
            id(formatter): formatter
            for logger in (logging.root, *loggers.values())
            for formatter in _formatters_of(logger)
            if isinstance(formatter, kind)
        }.values()
    return _found


def _formatters_of(logger: object) -> list[Any]:
    """Return the formatters of a logger; none if it, or one of its handlers, is not as those of `logging`."""
    try:
        return [getattr(handler, "formatter", None) for handler in getattr(logger, "handlers", ())]
    except Exception:  # noqa: BLE001 a logger of another library's
        return []


def with_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sets the keys of its message in the current context, then calls ``function``."""
    if not (found := formatters()):
        return function  # a handler has configured the logging anew
    append = found[0].thread_safe_append_keys  # for the formatters of all loggers

    def keyed(message: Message[Any], *more: Any) -> Any:
        try:
            append(**{"group_id": None, **message.logger_keys})  # Powertools shows no key that is None
        except Exception:  # noqa: BLE001 a formatter of the user's own: keys of a line fail no message
            return function(message, *more)
        return function(message, *more)

    return keyed


def clear(delivery_ids: Container[str]) -> None:
    """Remove keys of these messages that handlers have set for the whole process, with ``append_keys``."""
    for formatter in _found:
        if formatter.get_current_keys().get("delivery_id") in delivery_ids:
            formatter.remove_keys(KEYS)
