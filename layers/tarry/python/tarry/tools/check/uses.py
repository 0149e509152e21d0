"""Actions of a function's code that need permissions beside those of its failure steps."""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tarry.tools.check.sources import SourceFile

CIRCUIT_BREAKER = "aws_lambda_powertools.utilities.circuit_breaker"
BREAKER_NAMES = frozenset({"circuit_breaker", "CircuitBreakerOpenError"})
TABLE_LAYER = "DynamoDBPersistenceLayer"
ATTEMPT_STORES = frozenset({"DynamoDBAttempts", "MemoryAttempts"})
"""The attempt stores: with one, a deferred message waits in place without an attempt."""
MESSAGE_NAMES = frozenset({"message", "msg"})


class Uses(NamedTuple):
    """The certain actions of a function's own code."""

    defers: bool
    """Whether it defers messages, so that tarry sends copies to their queue."""
    has_idempotency_table: bool
    """Whether its consumer keeps idempotency records in DynamoDB."""


def uses_of(files: Iterable[SourceFile]) -> Uses:
    """Return what the code in these files does."""
    found = {use for file in files for use in _uses(file.tree)}
    return Uses("defers" in found and "attempts" not in found, {"table", "idempotency"} <= found)


def _uses(tree: ast.Module) -> Iterator[str]:
    """Yield the uses in a file, as words."""
    imported = {
        each.asname or each.name: (node.module, each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
    }
    messages = MESSAGE_NAMES | {
        each.arg
        for each in ast.walk(tree)
        if isinstance(each, ast.arg) and each.annotation and "Message" in ast.unparse(each.annotation)
    }
    yield from _imported_uses(imported.values())
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="defer")) if name in messages:
                yield "defers"
            case ast.Call(func=ast.Name(id=name)) if imported.get(name, ("", ""))[1] == TABLE_LAYER:
                yield "table"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tarry"), attr=attr)) if attr in ATTEMPT_STORES:
                yield "attempts"
            case ast.Attribute(value=ast.Name(id="tarry"), attr="Defer"):
                yield "defers"
            case ast.Name(id=name) if imported.get(name) == ("tarry", "Defer"):
                yield "defers"
            case ast.keyword(arg="idempotency", value=value) if not isinstance(value, ast.Constant):
                yield "idempotency"


def _imported_uses(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    for module, name in names:
        if module.startswith(CIRCUIT_BREAKER) and name in BREAKER_NAMES:
            yield "defers"
        if module.partition(".")[0] == "tarry" and name in ATTEMPT_STORES:
            yield "attempts"
