"""The backoff that an expression makes, read without running it."""

import ast
import operator
from collections.abc import Callable
from typing import Any

from tarry.decide.backoff import Backoff, Exponential, Fixed, Linear, Schedule, as_backoff
from tarry.errors import ConfigurationError

KINDS: dict[str | None, Callable[..., Backoff]] = {
    each.__name__: each for each in (Exponential, Fixed, Linear, Schedule)
}
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
NameInTarry = Callable[[ast.expr], str | None]
Value = Callable[[ast.expr], ast.expr | None]


def backoff_of(node: ast.expr | None, name_in_tarry: NameInTarry, value: Value) -> Backoff | None:
    """Return the backoff that an expression makes; None if that is not certain.

    Args:
        node: The expression.
        name_in_tarry: Returns the name in tarry for which an expression stands.
        value: Returns the value of a name that is assigned once.
    """
    match node:
        case ast.Call(func=ast.Attribute(value=maker, attr="rocketmq"), args=[], keywords=keywords):
            make = Schedule.rocketmq if name_in_tarry(maker) == "Schedule" else None
            return _made(make, [], keywords, value)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            return _made(KINDS.get(name_in_tarry(function)), arguments, keywords, value)
        case _:
            return None


def _made(
    make: Callable[..., Backoff] | None, arguments: list[ast.expr], keywords: list[ast.keyword], value: Value
) -> Backoff | None:
    if make is None or any(each.arg is None for each in keywords):
        return None
    try:
        given = {str(each.arg): constant(each.value, value) for each in keywords}
        return as_backoff(make(*(constant(each, value) for each in arguments), **given))
    except (ConfigurationError, ArithmeticError, RecursionError, TypeError, ValueError):
        return None  # not constant, or the consumer itself cannot be made of it


def constant(node: ast.expr, value: Value) -> Any:
    """Return the value of an expression of constants. Raises `ValueError` for any other expression."""
    match value(node):
        case ast.Constant(value=found):
            return found
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [constant(each, value) for each in elements]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](constant(left, value), constant(right, value))
        case _:
            raise ValueError
