"""SQL expressions of DEFINE and MEASURES: read from text and checked against a white list, types included.

Nothing a user writes is ever evaluated as Python. sqlglot gives the syntax tree; every node type that is not
listed here is refused with its place, and types are checked before any data is read. NULL follows SQL's
three-valued logic; a division by zero gives NULL. What comes out is a tree of `nodes`, which Arrow evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from spark_jobs.cep import nodes
from spark_jobs.cep.coercion import arithmetic, as_type, check_ordered, total_type, unified, widened
from spark_jobs.cep.columns import decoded
from spark_jobs.cep.literals import integer_of, literal, place_of
from spark_jobs.cep.navigation import AGGREGATES, Word, without_navigation
from spark_jobs.cep.nodes import Aggregate, At, Call, Classifier, Const, MatchNumber, Nav, Node, Ref, is_number, is_text, sql
from spark_jobs.errors import ExpressionError, suggest

Columns: TypeAlias = Mapping[str, Any]
Types: TypeAlias = Mapping[str, pa.DataType]

# A predicate longer than this is a generated one; the parser recurses, and its depth has to stay bounded.
MAX_TEXT = 4000
# .. and the depth of checks and evaluation, four of Python's frames per operator of a chain.
MAX_DEPTH = 50
# More rows than this to look back or ahead is a mistake in the text, and every shard would have to keep them.
MAX_OFFSET = 1_000_000


@dataclass(frozen=True)
class Expression:
    """A checked expression: its type, the columns it reads, and its tree."""

    text: str
    type: pa.DataType
    columns: frozenset[str]
    node: Node

    def evaluate(self, columns: Columns) -> Any:
        """The value as an Arrow array, or as a scalar where no column is involved."""
        try:
            return nodes.compute(self.node, lambda leaf: decoded(columns[cast("Ref", leaf).column]))
        except pa.ArrowException as error:
            raise ExpressionError(f"'{self.text}' cannot be evaluated: {error}", 1) from error


@dataclass(frozen=True)
class Scope:
    """What names mean in one text. Without symbols, only the columns of one row exist."""

    types: Types
    symbols: Sequence[str] = ()
    subsets: Mapping[str, tuple[str, ...]] | None = None
    defining: str | None = None  # the symbol whose predicate is read; None in MEASURES
    complete: bool = False  # the end of the input is known, so NEXT and MATCH_NUMBER have a meaning

    @property
    def labels(self) -> list[str]:
        return [*self.symbols, *(self.subsets or {})]

    def mask(self, label: str) -> int:
        """The symbols that `label` stands for, as bits; no label means any symbol."""
        if not label:
            return nodes.ANY_SYMBOL
        members = (self.subsets or {}).get(label, (label,))
        return sum(1 << self.symbols.index(member) for member in set(members))

    def has_candidate(self, label: str) -> bool:
        """Whether the candidate row counts as one of `label`'s rows."""
        return self.defining is not None and bool(self.mask(label) >> self.symbols.index(self.defining) & 1)


def parse_predicate(text: str, types: Types) -> Expression:
    """A boolean expression over the columns in `types`."""
    return _expression(text, read_predicate(text, Scope(types)))


def parse_expression(text: str, types: Types) -> Expression:
    """Any scalar expression over the columns in `types`; a name may be qualified, as in `B.amount`."""
    return _expression(text, read(text, Scope(types)))


def _expression(text: str, node: Node) -> Expression:
    return Expression(text, node.type, nodes.columns_of(node), node)


def read_predicate(text: str, scope: Scope) -> Node:
    """A tree of type bool."""
    node = read(text, scope)
    if not (pa.types.is_boolean(node.type) or pa.types.is_null(node.type)):
        raise ExpressionError(f"a predicate must be true or false, but '{text}' is of type {node.type}", 1)
    return as_type(node, pa.bool_())


def read(text: str, scope: Scope) -> Node:
    """The checked tree of `text`."""
    if not text.isprintable() and not re.sub(r"[\n\t\r]", " ", text).isprintable():
        raise ExpressionError("the expression contains characters that cannot be printed", 1)
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"the expression has {len(text)} characters; {MAX_TEXT} are possible", 1)
    try:
        plain, calls = without_navigation(text)
        tree = cast("exp.Expression", sqlglot.parse_one(plain))
        return _Reader(scope, calls, len(text)).read(tree)
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        column = _column_in_text(text, first.get("line"), first.get("col"))
        raise ExpressionError(f"'{text}' is not a valid expression: {_plain(error)}", column) from None
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(f"'{text}' is not a valid expression: {_plain(error)}", 1) from None
    except RecursionError:
        raise ExpressionError("the expression is nested too deeply", 1) from None


def _plain(error: Exception) -> str:
    """The first line of sqlglot's message, without its terminal colours and class names."""
    message = str(error).splitlines()[0].split("\x1b")[0].rstrip(". ")
    return "an operand is missing" if message.startswith("Required keyword") else message


def _column_in_text(text: str, line: int | None, column: int | None) -> int:
    """sqlglot counts characters per line, we count them in the whole text."""
    before = sum(len(row) for row in text.splitlines(keepends=True)[: max((line or 1) - 1, 0)])
    return min(max(before + (column or 1), 1), len(text) + 1)


_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_ARITHMETIC: dict[type[exp.Expression], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_TEXT_FUNCTIONS: dict[type[exp.Expression], str] = {exp.Lower: "LOWER", exp.Upper: "UPPER", exp.Length: "LENGTH"}
_NUMBER_FUNCTIONS: dict[type[exp.Expression], str] = {
    exp.Abs: "ABS",
    exp.Round: "ROUND",
    exp.Floor: "FLOOR",
    exp.Ceil: "CEIL",
}
_ALLOWED = (
    "columns, literals, comparisons, AND, OR, NOT, + - * / %, BETWEEN, IN, LIKE, IS NULL, CASE, COALESCE, ABS, LOWER, UPPER, "
    "LENGTH, ROUND, FLOOR, CEIL; with a pattern also FIRST, LAST, PREV, NEXT, "
    "COUNT, SUM, MIN, MAX, AVG, CLASSIFIER, MATCH_NUMBER"
)


class _Reader:
    """Turns a syntax tree into typed nodes. Inside a navigation function, columns are those of one row and symbol."""

    def __init__(self, scope: Scope, calls: Mapping[int, Word], end: int) -> None:
        self.scope = scope
        self.end = end
        self.calls = calls
        self.inside: str | None = None  # the navigation function whose argument is being read
        self.labels: dict[str, int] = {}  # symbols met inside it, with their places
        self.depth = 0

    def read(self, node: Any) -> Node:
        while isinstance(node, exp.Paren):
            node = node.this
        if node is None:  # sqlglot lets some functions end with the text
            raise ExpressionError("an operand is missing", self.end)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested too deeply; {MAX_DEPTH} levels are possible", place_of(node))
        try:
            return self._read(node)
        finally:
            self.depth -= 1

    def _read(self, node: Any) -> Node:
        kind = type(node)
        if kind in _COMPARISONS:
            return self._compare(_COMPARISONS[kind], self.read(node.this), self.read(node.expression))
        if kind in _ARITHMETIC:
            return arithmetic(_ARITHMETIC[kind], self.read(node.this), self.read(node.expression), place_of(node))
        reader = _READERS.get(kind)
        if reader is not None:
            return reader(self, node)
        if kind in _TEXT_FUNCTIONS:
            return self._text_function(node)
        if kind in _NUMBER_FUNCTIONS:
            return self._number_function(node)
        name = node.sql_name() if isinstance(node, exp.Func) else node.key.upper()
        raise ExpressionError(f"{name} is not allowed in an expression; allowed are {_ALLOWED}", place_of(node))

    def _column(self, node: Any) -> Node:
        parts, place = [part.name for part in node.parts], place_of(node)
        if len(parts) == 1 and node.this.args.get("quoted") and parts[0] not in self.scope.types:
            said = f"unknown column '{parts[0]}'; double quotes make a name, a text is written '{parts[0]}'"
            raise ExpressionError(said, place)
        if any(isinstance(part, exp.Star) for part in node.parts):
            raise ExpressionError("* is possible in COUNT(*) and COUNT(A.*) only", place)
        if not self.scope.symbols:
            return self._plain_column(".".join(parts), place)
        *qualifier, name = parts
        label = ".".join(qualifier)
        self._check_label(label, place)
        column = self._plain_column(name, place_of(node.this))
        if self.inside is not None:
            self.labels.setdefault(label, place)
            return column
        return At(column.type, place, column, self._usual(label), label)

    def _plain_column(self, name: str, place: int) -> Ref:
        if name not in self.scope.types:
            raise ExpressionError(f"unknown column '{name}'{suggest(name, list(self.scope.types))}", place)
        return Ref(nodes.plain_type(self.scope.types[name]), place, name)

    def _check_label(self, label: str, place: int) -> None:
        if label and label not in self.scope.labels:
            raise ExpressionError(f"unknown symbol '{label}'{suggest(label, self.scope.labels)}", place)

    def _usual(self, label: str) -> Nav:
        """The row that `A.v` or `v` means without a navigation function."""
        if not label or self.scope.has_candidate(label):
            return Nav()
        return Nav("last", self.scope.mask(label))

    def _call(self, node: Any) -> Node:
        place = place_of(node)
        word = self.calls.get(place - 1)
        if word is None:
            raise ExpressionError(f"{str(node.this).upper()} is not allowed in an expression; allowed are {_ALLOWED}", place)
        if not self.scope.symbols:
            raise ExpressionError(f"{word.name} needs a pattern; here an expression sees one row", place)
        if self.inside is not None:
            raise ExpressionError(f"{word.name} is not possible inside {self.inside}", place)
        if word.final is not None:
            self._check_prefix(word, place)
        if word.name in AGGREGATES:
            return self._aggregate(word, node, place)
        if word.name in ("FIRST", "LAST"):
            return self._first_last(word, node, place)
        if word.name in ("PREV", "NEXT"):
            return self._prev_next(word, node, place)
        return self._of_match(word, node, place)

    def _check_prefix(self, word: Word, place: int) -> None:
        if word.name in ("PREV", "NEXT", "CLASSIFIER", "MATCH_NUMBER"):
            raise ExpressionError(f"RUNNING and FINAL stand before FIRST, LAST and aggregates, not before {word.name}", place)
        if word.final and self.scope.defining is not None:
            raise ExpressionError("FINAL is not possible in DEFINE: the match has not ended when a row is tried", place)

    def _of_match(self, word: Word, node: Any, place: int) -> Node:
        """CLASSIFIER() and MATCH_NUMBER()."""
        if node.expressions:
            raise ExpressionError(f"{word.name} takes no argument", place)
        if word.name == "CLASSIFIER":
            if self.scope.defining is not None:
                return Const(pa.string(), place, pa.scalar(self.scope.defining))
            return Classifier(pa.string(), place)
        if self.scope.defining is not None:
            raise ExpressionError("MATCH_NUMBER is possible in MEASURES only", place)
        if not self.scope.complete:
            raise ExpressionError("MATCH_NUMBER needs a complete input; in a pipeline use x and y of the complex event", place)
        return MatchNumber(pa.int64(), place)

    def _first_last(self, word: Word, node: Any, place: int) -> At:
        value, label = self._argument(word.name, node, place, most=2)
        offset = _offset(word.name, node.expressions[1:], 0)
        if word.name == "LAST" and offset == 0 and self.scope.has_candidate(label):
            return At(value.type, place, value, Nav(), label, by_last=True)
        kind = cast("Literal['first', 'last']", word.name.lower())
        return At(value.type, place, value, Nav(kind, self.scope.mask(label), offset, 0, word.final), label)

    def _prev_next(self, word: Word, node: Any, place: int) -> At:
        if word.name == "NEXT" and not self.scope.complete:
            raise ExpressionError("NEXT needs a complete input; a pipeline does not know the next row yet", place)
        shift = _offset(word.name, node.expressions[1:], 1) * (-1 if word.name == "PREV" else 1)
        inner = node.expressions[0] if node.expressions else None
        while isinstance(inner, exp.Paren):
            inner = inner.this
        nested = self.calls.get(place_of(inner) - 1) if isinstance(inner, exp.Anonymous) else None
        if nested is not None and nested.name in ("FIRST", "LAST"):
            self._at_most(word.name, node, 2, place)
            at = cast("At", self.read(inner))
            return At(at.type, place, at.value, at.nav._replace(shift=shift), at.label)
        value, label = self._argument(word.name, node, place, most=2)
        return At(value.type, place, value, self._usual(label)._replace(shift=shift), label)

    def _aggregate(self, word: Word, node: Any, place: int) -> Node:
        self._at_most(word.name, node, 1, place)
        whole = self._whole_rows(word, node)
        if whole is not None:
            return Aggregate(pa.int64(), place, "COUNT", None, self.scope.mask(whole), word.final, whole)
        value, label = self._argument(word.name, node, place, most=1)
        mask = self.scope.mask(label)
        count = Aggregate(pa.int64(), place, "COUNT", value, mask, word.final, label)
        if word.name == "COUNT":
            return count
        if word.name in ("MIN", "MAX"):
            check_ordered(word.name, value, place)
            kind = cast("Literal['MIN', 'MAX']", word.name)
            return Aggregate(value.type, place, kind, value, mask, word.final, label)
        if not is_number(value.type):
            raise ExpressionError(f"{word.name} needs numbers, not {value.type}", place)
        result = total_type(value.type)
        if not pa.types.is_decimal(result):
            value = as_type(value, result)
        total = Aggregate(result, place, "SUM", value, mask, word.final, label)
        return total if word.name == "SUM" else arithmetic("/", total, count, place)

    def _whole_rows(self, word: Word, node: Any) -> str | None:
        """The symbol of COUNT(A.*), "" for COUNT(*), None if it is something else."""
        inner = node.expressions[0]
        if word.name != "COUNT":
            return None
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            return ""
        if isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star):
            label = ".".join(part.name for part in inner.parts[:-1])
            self._check_label(label, place_of(inner))
            return label
        return None

    def _argument(self, name: str, node: Any, place: int, most: int) -> tuple[Node, str]:
        """The first argument of a navigation function: an expression over the columns of one row, and its symbol."""
        self._at_most(name, node, most, place)
        self.inside, self.labels = name, {}
        try:
            value = self.read(node.expressions[0])
        finally:
            self.inside = None
        if len(self.labels) > 1:
            first, second, *_ = (label or "no symbol" for label in self.labels)
            where = list(self.labels.values())[1]
            raise ExpressionError(f"{name} looks at the rows of one symbol, not of {first} and {second}", where)
        if not self.labels:
            raise ExpressionError(f"{name} needs a column", place)
        return value, next(iter(self.labels))

    def _at_most(self, name: str, node: Any, most: int, place: int) -> None:
        if not 1 <= len(node.expressions) <= most:
            wanted = "one argument" if most == 1 else f"one to {most} arguments"
            raise ExpressionError(f"{name} needs {wanted}, not {len(node.expressions)}", place)

    def _negative(self, node: Any) -> Node:
        operand = self.read(node.this)
        if isinstance(operand, Const) and is_number(operand.type):
            exact = None if operand.exact is None else -operand.exact
            return Const(operand.type, operand.place, pc.negate(operand.value), exact)
        if pa.types.is_null(operand.type):
            return operand
        if not (is_number(operand.type) or pa.types.is_duration(operand.type)):
            raise ExpressionError(f"a minus needs a number, not {operand.type}", operand.place)
        operand = widened(operand)
        return Call(operand.type, operand.place, "NEG", (operand,))

    def _boolean(self, node: Any) -> Node:
        operand = self.read(node)
        if not (pa.types.is_boolean(operand.type) or pa.types.is_null(operand.type)):
            raise ExpressionError(f"'{sql(operand)}' is {operand.type}, but true or false is needed here", operand.place)
        return as_type(operand, pa.bool_())

    def _connective(self, node: Any) -> Node:
        kind = type(node)
        parts, waiting = [], [node]
        while waiting:  # not recursive: generated lists of alternatives are long
            part = waiting.pop()
            while isinstance(part, exp.Paren):
                part = part.this
            if type(part) is kind:
                waiting += [part.expression, part.this]
            else:
                parts.append(self._boolean(part))
        return Call(pa.bool_(), parts[0].place, "AND" if kind is exp.And else "OR", tuple(parts))

    def _not(self, node: Any) -> Node:
        operand = self._boolean(node.this)
        return Call(pa.bool_(), operand.place, "NOT", (operand,))

    def _compare(self, op: str, left: Node, right: Node) -> Node:
        if self.scope.defining is not None:
            _check_not_itself(op, left, right)
        if pa.types.is_null(left.type) or pa.types.is_null(right.type):
            return Const(pa.bool_(), left.place, pa.scalar(None, pa.bool_()))
        left, right = unified([left, right], f"{sql(left)} {op} {sql(right)}", "compares")
        if op not in ("=", "<>"):
            check_ordered(op, left, left.place)
        return Call(pa.bool_(), left.place, op, (left, right))

    def _between(self, node: Any) -> Node:
        if node.args.get("symmetric"):
            raise ExpressionError("BETWEEN SYMMETRIC is not allowed; put the smaller value first", place_of(node))
        value = self.read(node.this)
        low = self._compare(">=", value, self.read(node.args["low"]))
        high = self._compare("<=", value, self.read(node.args["high"]))
        return Call(pa.bool_(), value.place, "AND", (low, high))

    def _membership(self, node: Any) -> Node:
        if not node.expressions:
            raise ExpressionError("IN needs a list of values", place_of(node))
        value = self.read(node.this)
        equals = tuple(self._compare("=", value, self.read(item)) for item in node.expressions)
        return Call(pa.bool_(), value.place, "OR", equals)

    def _is_null(self, node: Any) -> Node:
        if not isinstance(node.expression, exp.Null):
            raise ExpressionError("only IS NULL and IS NOT NULL are allowed", place_of(node))
        operand = self.read(node.this)
        return Call(pa.bool_(), operand.place, "IS NULL", (operand,))

    def _like(self, node: Any) -> Node:
        operand, pattern = self.read(node.this), node.expression
        if not is_text(operand.type) or not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise ExpressionError("LIKE needs a text column and a literal pattern", place_of(node))
        like = Call(pa.bool_(), operand.place, "LIKE", (widened(operand),), str(pattern.this))
        # sqlglot keeps the NOT of NOT LIKE as a mark on the node, not as a node of its own.
        return Call(pa.bool_(), operand.place, "NOT", (like,)) if node.args.get("negate") else like

    def _coalesce(self, node: Any) -> Node:
        args = [self.read(item) for item in [node.this, *node.expressions]]
        args = unified(args, f"COALESCE({', '.join(map(sql, args))})", "mixes")
        return args[0] if len(args) == 1 else Call(args[0].type, place_of(node), "COALESCE", tuple(args))

    def _case(self, node: Any) -> Node:
        conditions = []
        subject = self.read(node.this) if node.this is not None else None
        for branch in node.args["ifs"]:
            if subject is None:
                conditions.append(self._boolean(branch.this))
            else:
                conditions.append(self._compare("=", subject, self.read(branch.this)))
        default = node.args.get("default")
        values = [self.read(branch.args["true"]) for branch in node.args["ifs"]]
        values.append(Const(pa.null(), place_of(node), pa.scalar(None)) if default is None else self.read(default))
        values = unified(values, "CASE", "mixes")
        args = [part for pair in zip(conditions, values[:-1], strict=True) for part in pair]
        return Call(values[0].type, place_of(node), "CASE", (*args, values[-1]))

    def _text_function(self, node: Any) -> Node:
        name, operand = _TEXT_FUNCTIONS[type(node)], self.read(node.this)
        self._no_options(name, node, {"this"})
        result = pa.int64() if name == "LENGTH" else pa.string()
        if pa.types.is_null(operand.type):
            return as_type(operand, result)
        if not is_text(operand.type):
            raise ExpressionError(f"{name} needs text, not {operand.type}", place_of(node))
        operand = widened(operand)
        return Call(result if name == "LENGTH" else operand.type, place_of(node), name, (operand,))

    def _number_function(self, node: Any) -> Node:
        name, operand = _NUMBER_FUNCTIONS[type(node)], self.read(node.this)
        self._no_options(name, node, {"this", "decimals"} if name == "ROUND" else {"this"})
        if pa.types.is_null(operand.type):
            return operand
        if not (is_number(operand.type) or (name == "ABS" and pa.types.is_duration(operand.type))):
            raise ExpressionError(f"{name} needs a number, not {operand.type}", place_of(node))
        operand, digits = widened(operand), self._digits(node) if name == "ROUND" else 0
        if pa.types.is_integer(operand.type) and (name in ("FLOOR", "CEIL") or (name == "ROUND" and digits >= 0)):
            return operand
        return Call(operand.type, place_of(node), name, (operand,), digits if name == "ROUND" else None)

    def _digits(self, node: Any) -> int:
        decimals = node.args.get("decimals")
        value = 0 if decimals is None else integer_of(self.read(decimals))
        if value is None or abs(value) > 18:
            raise ExpressionError("ROUND needs a literal number of digits, -18 to 18", place_of(decimals))
        return value

    def _no_options(self, name: str, node: Any, known: set[str]) -> None:
        strange = [key for key, value in node.args.items() if value not in (None, False, []) and key not in known]
        if strange:
            raise ExpressionError(
                f"{name} is possible with {'one argument' if len(known) == 1 else 'digits'} only", place_of(node)
            )

    def _literal(self, node: Any) -> Node:
        return literal(node)


_READERS: dict[type[exp.Expression], Callable[[_Reader, Any], Node]] = {
    exp.Column: _Reader._column,
    exp.Anonymous: _Reader._call,
    exp.Neg: _Reader._negative,
    exp.And: _Reader._connective,
    exp.Or: _Reader._connective,
    exp.Not: _Reader._not,
    exp.Between: _Reader._between,
    exp.In: _Reader._membership,
    exp.Is: _Reader._is_null,
    exp.Like: _Reader._like,
    exp.Coalesce: _Reader._coalesce,
    exp.Case: _Reader._case,
    exp.Literal: _Reader._literal,
    exp.Boolean: _Reader._literal,
    exp.Null: _Reader._literal,
    exp.Cast: _Reader._literal,
    exp.Interval: _Reader._literal,
}


def _check_not_itself(op: str, left: Node, right: Node) -> None:
    """In DEFINE A, LAST(A.v) is the candidate: whoever compares it with A.v means the row before."""
    sides = [[leaf for leaf in nodes.leaves(side) if not isinstance(leaf, Const)] for side in (left, right)]
    both = sides[0] + sides[1]
    last = next((leaf for leaf in both if isinstance(leaf, At) and leaf.by_last), None)
    if last is not None and sides[0] and sides[1] and all(leaf == both[0] for leaf in both):
        inner = sql(last.value, last.label)
        raise ExpressionError(
            f"'{sql(left)} {op} {sql(right)}' compares the candidate row with itself, because LAST({inner}) includes it; "
            f"write LAST({inner}, 1) for the row bound before",
            last.place,
        )


def _offset(name: str, rest: list[Any], usual: int) -> int:
    """The second argument of a navigation function."""
    if not rest:
        return usual
    text = str(rest[0].this) if isinstance(rest[0], exp.Literal) and not rest[0].is_string else ""
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > MAX_OFFSET:
        raise ExpressionError(f"the offset of {name} must be a literal number of rows, at most {MAX_OFFSET}", place_of(rest[0]))
    return int(text)
