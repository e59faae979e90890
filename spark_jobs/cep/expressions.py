"""SQL expressions of DEFINE and MEASURES: parsed, checked against a white list, evaluated columnar by Arrow.

Nothing a user writes is ever evaluated as Python. sqlglot gives the syntax tree; every node type that is not
listed here is refused with its place, and types are checked before any data is read. NULL follows SQL's
three-valued logic; a division by zero gives NULL.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from spark_jobs.errors import ExpressionError, suggest

Columns = Mapping[str, Any]
Evaluator = Callable[[Columns], Any]

# A predicate longer than this is a generated one; the parser recurses, and its depth has to stay bounded.
MAX_TEXT = 4000

_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
}
_ARITHMETIC: dict[type[exp.Expression], str] = {
    exp.Add: "add_checked",
    exp.Sub: "subtract_checked",
    exp.Mul: "multiply_checked",
}


@dataclass(frozen=True)
class Expression:
    """A checked expression: its type, the columns it reads, and how to evaluate it."""

    text: str
    type: pa.DataType
    columns: frozenset[str]
    _evaluate: Evaluator

    def evaluate(self, columns: Columns) -> Any:
        """The value as an Arrow array, or as a scalar where no column is involved."""
        try:
            return self._evaluate(columns)
        except pa.ArrowException as error:
            raise ExpressionError(f"'{self.text}' cannot be evaluated: {error}") from error


def parse_predicate(text: str, types: Mapping[str, pa.DataType]) -> Expression:
    """A boolean expression over the columns in `types`."""
    expression = parse_expression(text, types)
    if not (pa.types.is_boolean(expression.type) or pa.types.is_null(expression.type)):
        raise ExpressionError(f"a predicate must be true or false, but '{text}' is of type {expression.type}", 1)
    return expression


def parse_expression(text: str, types: Mapping[str, pa.DataType]) -> Expression:
    """Any scalar expression over the columns in `types`; a name may be qualified, as in `B.amount`."""
    if not text.isprintable() and not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise ExpressionError("the expression contains characters that cannot be printed", 1)
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the expression has {len(text)} characters; {MAX_TEXT} are possible", 1)
    try:
        tree = sqlglot.parse_one(text)
        compiler = _Compiler(types)
        type_, evaluate = compiler.compile(cast("exp.Expression", tree))
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        raise ExpressionError(f"'{text}' is not a valid expression: {_plain(error)}", first.get("col")) from None
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(f"'{text}' is not a valid expression: {_plain(error)}", 1) from None
    except RecursionError:
        raise ExpressionError("the expression is nested too deeply", 1) from None
    return Expression(text, type_, frozenset(compiler.used), evaluate)


def _plain(error: Exception) -> str:
    """The first line of sqlglot's message, without its terminal colours and class names."""
    message = str(error).splitlines()[0].split("\x1b")[0].rstrip(". ")
    return "an operand is missing" if message.startswith("Required keyword") else message


class _Compiler:
    """Turns a syntax tree into a typed evaluator; `used` collects the columns it met."""

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self.types = types
        self.used: set[str] = set()

    def compile(self, node: exp.Expression) -> tuple[pa.DataType, Evaluator]:
        if isinstance(node, exp.Paren):
            return self.compile(node.this)
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, (exp.Literal, exp.Boolean, exp.Null, exp.Cast)):
            return _literal(node)
        if isinstance(node, exp.Neg):
            return self._negative(node)
        if isinstance(node, (exp.And, exp.Or)):
            return self._connective(node)
        if isinstance(node, exp.Not):
            operand = self._boolean(node.this)
            return pa.bool_(), lambda columns: pc.invert(operand(columns))
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if type(node) in _ARITHMETIC or isinstance(node, exp.Div):
            return self._arithmetic(node)
        if isinstance(node, exp.Between):
            if node.args.get("symmetric"):
                raise ExpressionError("BETWEEN SYMMETRIC is not allowed; put the smaller value first", _place(node))
            low = exp.GTE(this=node.this, expression=node.args["low"])
            high = exp.LTE(this=node.this, expression=node.args["high"])
            return self._connective(exp.And(this=low, expression=high))
        if isinstance(node, exp.In):
            return self._membership(node)
        if isinstance(node, exp.Is):
            return self._is_null(node)
        if isinstance(node, exp.Like):
            return self._like(node)
        if isinstance(node, (exp.Coalesce, exp.Abs, exp.Lower, exp.Upper)):
            return self._function(node)
        name = node.sql_name() if isinstance(node, exp.Func) else node.key.upper()
        if isinstance(node, exp.Anonymous):
            name = str(node.this).upper()
        raise ExpressionError(
            f"{name} is not allowed in an expression; allowed are columns, literals, comparisons, AND, OR, NOT, "
            "+ - * /, BETWEEN, IN, LIKE, IS NULL, COALESCE, ABS, LOWER, UPPER",
            _place(node),
        )

    def _column(self, node: exp.Column) -> tuple[pa.DataType, Evaluator]:
        name = ".".join(part.name for part in node.parts)
        if name not in self.types:
            raise ExpressionError(f"unknown column '{name}'{suggest(name, list(self.types))}", _place(node))
        self.used.add(name)
        return self.types[name], lambda columns: columns[name]

    def _negative(self, node: exp.Neg) -> tuple[pa.DataType, Evaluator]:
        type_, operand = self.compile(node.this)
        if not _is_number(type_):
            raise ExpressionError(f"a minus needs a number, not {type_}", _place(node))
        return type_, lambda columns: pc.negate_checked(operand(columns))

    def _boolean(self, node: exp.Expression) -> Evaluator:
        type_, operand = self.compile(node)
        if not (pa.types.is_boolean(type_) or pa.types.is_null(type_)):
            raise ExpressionError(f"'{node.sql()}' is {type_}, but true or false is needed here", _place(node))
        if pa.types.is_null(type_):
            return lambda columns: pa.scalar(None, pa.bool_())
        return operand

    def _connective(self, node: exp.And | exp.Or) -> tuple[pa.DataType, Evaluator]:
        left, right = self._boolean(node.this), self._boolean(node.expression)
        combine = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        return pa.bool_(), lambda columns: combine(left(columns), right(columns))

    def _comparison(self, node: exp.Expression) -> tuple[pa.DataType, Evaluator]:
        left_type, left = self.compile(node.this)
        right_type, right = self.compile(node.expression)
        _check_comparable(left_type, right_type, node)
        if pa.types.is_null(left_type) or pa.types.is_null(right_type):
            return pa.bool_(), lambda columns: pa.scalar(None, pa.bool_())
        function = _COMPARISONS[type(node)]
        return pa.bool_(), lambda columns: pc.call_function(function, [left(columns), right(columns)])

    def _arithmetic(self, node: exp.Expression) -> tuple[pa.DataType, Evaluator]:
        left_type, left = self.compile(node.this)
        right_type, right = self.compile(node.expression)
        for type_ in (left_type, right_type):
            if not _is_number(type_):
                raise ExpressionError(f"'{node.sql()}' needs numbers, not {type_}", _place(node))
        if isinstance(node, exp.Div):
            return pa.float64(), lambda columns: _divide(left(columns), right(columns))
        function = _ARITHMETIC[type(node)]
        probe = pc.call_function(function, [pa.scalar(1, left_type), pa.scalar(1, right_type)])
        return probe.type, lambda columns: pc.call_function(function, [left(columns), right(columns)])

    def _membership(self, node: exp.In) -> tuple[pa.DataType, Evaluator]:
        if not node.expressions:
            raise ExpressionError("IN needs a list of values", _place(node))
        equals = [exp.EQ(this=node.this, expression=item) for item in node.expressions]
        whole: exp.Expression = equals[0]
        for item in equals[1:]:
            whole = exp.Or(this=whole, expression=item)
        return self.compile(whole)

    def _is_null(self, node: exp.Is) -> tuple[pa.DataType, Evaluator]:
        if not isinstance(node.expression, exp.Null):
            raise ExpressionError("only IS NULL and IS NOT NULL are allowed", _place(node))
        _, operand = self.compile(node.this)
        return pa.bool_(), lambda columns: pc.is_null(operand(columns))

    def _like(self, node: exp.Like) -> tuple[pa.DataType, Evaluator]:
        type_, operand = self.compile(node.this)
        pattern = node.expression
        if not pa.types.is_string(type_) or not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise ExpressionError("LIKE needs a text column and a literal pattern", _place(node))
        text = str(pattern.this)
        return pa.bool_(), lambda columns: pc.match_like(operand(columns), text)

    def _function(self, node: Any) -> tuple[pa.DataType, Evaluator]:
        arguments = [self.compile(item) for item in [node.this, *node.expressions]]
        type_ = arguments[0][0]
        evaluators = [evaluate for _, evaluate in arguments]
        if isinstance(node, exp.Coalesce):
            for other, _ in arguments[1:]:
                _check_comparable(type_, other, node)
            common = pc.coalesce(*[pa.scalar(None, other) for other, _ in arguments]).type
            return common, lambda columns: pc.coalesce(*[evaluate(columns) for evaluate in evaluators])
        if isinstance(node, exp.Abs):
            if not _is_number(type_):
                raise ExpressionError(f"ABS needs a number, not {type_}", _place(node))
            return type_, lambda columns: pc.abs_checked(evaluators[0](columns))
        if not pa.types.is_string(type_):
            raise ExpressionError(f"{node.sql_name()} needs text, not {type_}", _place(node))
        function = pc.utf8_lower if isinstance(node, exp.Lower) else pc.utf8_upper
        return type_, lambda columns: function(evaluators[0](columns))


def _literal(node: exp.Expression) -> tuple[pa.DataType, Evaluator]:
    scalar = _scalar(node)
    return scalar.type, lambda columns: scalar


def _scalar(node: exp.Expression) -> pa.Scalar:
    if isinstance(node, exp.Null):
        return pa.scalar(None)
    if isinstance(node, exp.Boolean):
        return pa.scalar(bool(node.this))
    if isinstance(node, exp.Cast):
        return _time_literal(node)
    text = str(node.this)
    if isinstance(node, exp.Literal) and node.is_string:
        return pa.scalar(text)
    if text.isdigit():
        if int(text) >= 2**63:
            raise ExpressionError(f"{text} does not fit into 64 bits", _place(node))
        return pa.scalar(int(text))
    try:
        value = float(text)
    except ValueError:
        raise ExpressionError(f"'{text}' is not a number", _place(node)) from None
    if not math.isfinite(value):
        raise ExpressionError(f"{text} does not fit into a double", _place(node))
    return pa.scalar(value)


def _time_literal(node: exp.Cast) -> pa.Scalar:
    """TIMESTAMP '2026-01-31 12:00:00' reaches us as a cast of a text literal; no other cast is allowed."""
    literal = node.this
    if node.to.this not in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ):
        raise ExpressionError("CAST is not allowed; write TIMESTAMP '2026-01-31 12:00:00'", _place(node))
    if not (isinstance(literal, exp.Literal) and literal.is_string):
        raise ExpressionError("TIMESTAMP needs a literal such as '2026-01-31 12:00:00'", _place(node))
    try:
        value = dt.datetime.fromisoformat(str(literal.this))
    except ValueError:
        raise ExpressionError(f"'{literal.this}' is not a time stamp such as '2026-01-31 12:00:00'", 1) from None
    return pa.scalar(value if value.tzinfo else value.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC"))


def _divide(left: Any, right: Any) -> Any:
    divisor = pc.cast(right, pa.float64())
    divisor = pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), divisor)
    return pc.divide(pc.cast(left, pa.float64()), divisor)


def _check_comparable(left: pa.DataType, right: pa.DataType, node: exp.Expression) -> None:
    if pa.types.is_null(left) or pa.types.is_null(right) or left == right:
        return
    if _is_number(left) and _is_number(right):
        return
    raise ExpressionError(f"'{node.sql()}' compares {left} with {right}", _place(node))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _place(node: exp.Expression) -> int | None:
    """The column of the leftmost word below `node` whose place the parser kept."""
    starts = [int(part.meta["start"]) for part in node.walk() if "start" in part.meta]
    return min(starts) + 1 if starts else None
