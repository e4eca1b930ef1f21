"""The few expressions that launchers' settings are written in: whole numbers, lists of them, + - * // %."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

LONGEST = 10_000
"""Characters of an expression, entries of a list: more is a slip of the keyboard."""

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate_expression(text: str) -> int | list[int] | None:
    """The value of `text`; None where it is no such expression. Nothing is executed: the parsed form is walked.

    >>> evaluate_expression("[0]*3+[1]*2"), evaluate_expression("8 * 4"), evaluate_expression("__import__('os')")
    ([0, 0, 0, 1, 1], 32, None)
    """
    if len(text) > LONGEST:
        return None
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value


def _value(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool) and abs(number) < 10**18:
            return number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values = [_value(item) for item in items]
            if all(isinstance(value, int) for value in values):
                return values  # type: ignore[return-value]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            first, second = _value(left), _value(right)
            _refuse_long(first, second, op)
            return _OPERATORS[type(op)](first, second)  # type: ignore[no-any-return]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand)
            if isinstance(value, int):
                return -value
    raise ValueError(ast.dump(node)[:60])


def _refuse_long(first: int | list[int], second: int | list[int], op: ast.operator) -> None:
    sizes = [len(value) for value in (first, second) if isinstance(value, list)]
    counts = [abs(value) for value in (first, second) if isinstance(value, int)]
    repeated = isinstance(op, ast.Mult) and sizes and counts and sizes[0] * counts[0] > LONGEST
    if repeated or sum(sizes) > LONGEST or any(count > 10**18 for count in counts):
        raise ValueError("an expression that grows beyond all sizes")
