"""Typed expression trees: what a checked expression means, and its columnar evaluation by Arrow.

`expressions` reads text into these nodes, `terms` and `measures` decide which row each reference means. Types are
explicit: where two types meet, a `cast` node stands in the tree, so every operation works on operands of one kind.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.errors import ExpressionError

UTC = "UTC"
ANY_SYMBOL = -1  # a bit mask with every bit set


class Nav(NamedTuple):
    """Which row a reference means: the row at hand, or the k-th first or last row bound to a set of symbols."""

    kind: Literal["row", "first", "last"] = "row"
    mask: int = ANY_SYMBOL  # bit s: rows bound to symbol s count
    offset: int = 0
    shift: int = 0  # rows of the key further (NEXT) or back (PREV, negative), whatever they are bound to
    final: bool | None = None  # None: as the output (one row or all rows per match) has it

    @property
    def base(self) -> Nav:
        """The same row before PREV or NEXT move away from it."""
        return self._replace(shift=0)


@dataclass(frozen=True)
class Node:
    """A value of one type. `place` is its character in the text, counted from 1."""

    type: pa.DataType
    place: int = field(compare=False)


@dataclass(frozen=True)
class Const(Node):
    value: Any  # a pa.Scalar of `type`
    exact: decimal.Decimal | None = field(default=None, compare=False)  # 1.5 is a double unless it meets a decimal


@dataclass(frozen=True)
class Ref(Node):
    column: str


@dataclass(frozen=True)
class At(Node):
    """`value`, an expression over the columns of one row, taken at the row that `nav` says; NULL if there is none."""

    value: Node
    nav: Nav
    label: str = field(default="", compare=False)  # the symbol or subset as written
    by_last: bool = field(default=False, compare=False)  # written as LAST(..), though it is the row at hand


@dataclass(frozen=True)
class Aggregate(Node):
    kind: Literal["COUNT", "SUM", "MIN", "MAX"]  # AVG is SUM / COUNT
    value: Node | None  # None: COUNT(*)
    mask: int
    final: bool | None = None
    label: str = field(default="", compare=False)


@dataclass(frozen=True)
class Classifier(Node):
    pass


@dataclass(frozen=True)
class MatchNumber(Node):
    pass


@dataclass(frozen=True)
class Call(Node):
    op: str
    args: tuple[Node, ...]
    option: Any = None  # the pattern of LIKE, the digits of ROUND


Leaf = Callable[[Node], Any]


def leaves(node: Node) -> Iterator[Node]:
    """References, aggregates and constants below `node`, not looking into references."""
    if isinstance(node, Call):
        for arg in node.args:
            yield from leaves(arg)
    else:
        yield node


def columns_of(node: Node) -> frozenset[str]:
    """The input columns that evaluating `node` reads."""
    found: set[str] = set()
    for leaf in leaves(node):
        if isinstance(leaf, Ref):
            found.add(leaf.column)
        elif isinstance(leaf, (At, Aggregate)) and leaf.value is not None:
            found |= columns_of(leaf.value)
    return frozenset(found)


def compute(node: Node, leaf: Leaf) -> Any:
    """The value as an Arrow array, or as a scalar where no column is involved. `leaf` gives references their values."""
    if isinstance(node, Const):
        return node.value
    if isinstance(node, Call):
        return _KERNELS[node.op](node, [compute(arg, leaf) for arg in node.args])
    return leaf(node)


def _and(node: Call, args: list[Any]) -> Any:
    whole = args[0]
    for arg in args[1:]:
        whole = pc.and_kleene(whole, arg)
    return whole


def _or(node: Call, args: list[Any]) -> Any:
    whole = args[0]
    for arg in args[1:]:
        whole = pc.or_kleene(whole, arg)
    return whole


def _case(node: Call, args: list[Any]) -> Any:
    """Arguments are condition, value, condition, value, .., default."""
    value = args[-1]
    for at in range(len(args) - 3, -1, -2):
        value = pc.if_else(pc.fill_null(args[at], False), args[at + 1], value)
    return value


def _divide(node: Call, args: list[Any]) -> Any:
    divisor = pc.if_else(pc.equal(args[1], 0.0), pa.scalar(None, pa.float64()), args[1])
    return pc.divide(args[0], divisor)


def _remainder(node: Call, args: list[Any]) -> Any:
    """The sign is the dividend's, as in SQL; Arrow has no such kernel."""
    if pa.types.is_integer(node.type):
        return _integer_remainder(*args)
    length = max([len(arg) for arg in args if not isinstance(arg, pa.Scalar)], default=None)
    arrays = [pa.repeat(arg, length or 1) if isinstance(arg, pa.Scalar) else arg for arg in args]
    if pa.types.is_decimal(node.type):
        rest = _decimal_remainder(arrays[0], arrays[1], node.type)
    else:
        left, right = (np.asarray(pc.fill_null(array, 0.0)) for array in arrays)
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = pa.array(np.fmod(left, right))
        fine = pc.and_(pc.and_(pc.is_valid(arrays[0]), pc.is_valid(arrays[1])), pc.not_equal(pa.array(right), 0.0))
        rest = pc.if_else(fine, rest, pa.scalar(None, pa.float64()))
    return rest if length is not None else rest[0]


def _integer_remainder(left: Any, right: Any) -> Any:
    # x % -1 = x % 1 = 0, and this way the smallest integer does not overflow.
    divisor = pc.if_else(pc.equal(right, 0), pa.scalar(None, pa.int64()), pc.if_else(pc.equal(right, -1), 1, right))
    return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))


def _decimal_remainder(left: Any, right: Any, type_: pa.DataType) -> Any:
    dividend, divisor = scaled_int64s(left, type_.scale), scaled_int64s(right, type_.scale)
    if dividend is None or divisor is None:
        raise pa.ArrowInvalid("the operands of % need more than 18 digits")
    rest = _integer_remainder(pa.array(dividend, mask=nulls_of(left)), pa.array(divisor, mask=nulls_of(right)))
    return decimals_of(np.asarray(pc.fill_null(rest, 0)), np.asarray(pc.is_null(rest)), type_)


def _length(node: Call, args: list[Any]) -> Any:
    return pc.cast(pc.utf8_length(args[0]), pa.int64())


def _round(node: Call, args: list[Any]) -> Any:
    return pc.round(args[0], ndigits=node.option, round_mode="half_towards_infinity")


def cast_to(value: Any, type_: pa.DataType) -> Any:
    """To doubles with rounding, as SQL does; to everything else only where nothing is lost."""
    return pc.cast(value, type_, safe=not pa.types.is_floating(type_))


def _call(function: str) -> Callable[[Call, list[Any]], Any]:
    return lambda node, args: pc.call_function(function, args)


_KERNELS: dict[str, Callable[[Call, list[Any]], Any]] = {
    "=": _call("equal"),
    "<>": _call("not_equal"),
    ">": _call("greater"),
    ">=": _call("greater_equal"),
    "<": _call("less"),
    "<=": _call("less_equal"),
    "AND": _and,
    "OR": _or,
    "NOT": _call("invert"),
    "+": _call("add_checked"),
    "-": _call("subtract_checked"),
    "*": _call("multiply_checked"),
    "/": _divide,
    "%": _remainder,
    "NEG": _call("negate_checked"),
    "ABS": _call("abs_checked"),
    "IS NULL": lambda node, args: pc.is_null(args[0]),
    "COALESCE": lambda node, args: pc.coalesce(*args),
    "CASE": _case,
    "CAST": lambda node, args: cast_to(args[0], node.type),
    "LOWER": _call("utf8_lower"),
    "UPPER": _call("utf8_upper"),
    "LENGTH": _length,
    "LIKE": lambda node, args: pc.match_like(args[0], node.option),
    "ROUND": _round,
    "FLOOR": _call("floor"),
    "CEIL": _call("ceil"),
}


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values once a dictionary is resolved."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def nulls_of(array: Any) -> Any:
    return np.asarray(pc.is_null(array))


def is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def is_word_sized(type_: pa.DataType) -> bool:
    """Can a kernel hold such values in 64 bits, texts as their ranks?"""
    number = is_number(type_) or pa.types.is_boolean(type_) or pa.types.is_null(type_)
    return bool(number or is_text(type_) or pa.types.is_temporal(type_))


def int64s_of(array: Any) -> Int64s:
    """Integers, truth values, dates, times, time stamps and durations as 64-bit integers, 0 for NULL."""
    if pa.types.is_null(array.type) or not is_word_sized(array.type):
        return np.zeros(len(array), np.int64)  # only whether it is NULL can be asked
    if pa.types.is_date64(array.type):
        array = array.cast(pa.date32())
    if pa.types.is_date32(array.type) or pa.types.is_time32(array.type):
        array = array.cast(pa.int32())
    return np.asarray(pc.fill_null(array.cast(pa.int64()), 0))


def signed(mask: int) -> int:
    """A set of up to 64 symbols as an int64 has it."""
    return mask - 2**64 if mask >= 2**63 else mask


def scaled_decimals(array: Any, node: Node) -> tuple[Int64s, int]:
    """Decimals as integers at their declared scale or, if that does not fit into 64 bits, the smallest that loses nothing."""
    values = scaled_int64s(array, array.type.scale)
    if values is not None:
        return values, array.type.scale
    low, high = 0, array.type.scale
    while low < high:
        middle = (low + high) // 2
        if _loses_digits(array, middle):
            low = middle + 1
        else:
            high = middle
    values = scaled_int64s(array, low)
    if values is None:
        names = ", ".join(sorted(columns_of(node)))
        raise ExpressionError(
            f"'{sql(node)}' (column {names}) has decimals of more than 18 digits; sums, and predicates over several rows, "
            "calculate with 64 bits. Multiply by 1e0 to calculate with doubles",
            node.place,
        )
    return values, low


def _loses_digits(array: Any, scale: int) -> bool:
    try:
        pc.cast(array, pa.decimal256(76, scale))
    except pa.ArrowInvalid:
        return True
    return False


def scaled_int64s(array: Any, scale: int) -> Int64s | None:
    """Decimals times 10**scale as 64-bit integers (0 for NULL), or None where one does not fit or loses digits."""
    try:
        wide = pc.cast(array, pa.decimal128(38, scale))
    except pa.ArrowInvalid:
        return None
    if wide.null_count:
        wide = pc.fill_null(wide, pa.scalar(decimal.Decimal(0), wide.type))
    words = np.frombuffer(wide.buffers()[1], np.int64) if len(wide) else np.zeros(0, np.int64)
    words = words[2 * wide.offset : 2 * (wide.offset + len(wide))].reshape(-1, 2)
    low = words[:, 0].copy()
    return low if bool((words[:, 1] == low >> 63).all()) else None


def decimals_of(values: Int64s, nulls: Any, type_: pa.DataType) -> Any:
    """The inverse of `scaled_int64s`, at the scale of `type_`."""
    words = np.empty((len(values), 2), np.int64)
    words[:, 0] = values
    words[:, 1] = values >> 63
    validity = pa.array(~nulls).buffers()[1]
    wide = pa.Array.from_buffers(pa.decimal128(38, type_.scale), len(values), [validity, pa.py_buffer(words)])
    return wide if wide.type == type_ else pc.cast(wide, type_)


def ranks_of(arrays: list[Any]) -> tuple[list[Int64s], Any]:
    """Order-preserving codes, common to all `arrays` of one type (0 for NULL), and the sorted values they stand for."""
    coded = [array if pa.types.is_dictionary(array.type) else array.dictionary_encode() for array in arrays]
    values = pa.concat_arrays([code.dictionary for code in coded]).unique().drop_null()
    values = values.take(pc.sort_indices(values))
    ranks = []
    for code in coded:
        rank = pc.fill_null(pc.index_in(code.dictionary, values), 0).cast(pa.int64())
        taken = rank.take(code.indices) if len(rank) else pa.nulls(len(code), pa.int64())
        ranks.append(np.asarray(pc.fill_null(taken, 0)))
    return ranks, values


def sql(node: Node, label: str = "") -> str:
    """The expression as text again, for explanations and messages."""
    if isinstance(node, Const):
        return _literal(node)
    if isinstance(node, Ref):
        name = node.column if node.column.replace("_", "a").isalnum() else f'"{node.column}"'
        return f"{label}.{name}" if label else name
    if isinstance(node, At):
        return _navigation(node)
    if isinstance(node, Aggregate):
        inside = sql(node.value, node.label) if node.value else (f"{node.label}.*" if node.label else "*")
        return f"{'FINAL ' if node.final else ''}{node.kind}({inside})"
    if isinstance(node, Classifier):
        return "CLASSIFIER()"
    if isinstance(node, MatchNumber):
        return "MATCH_NUMBER()"
    return _operation(node, label) if isinstance(node, Call) else repr(node)


def _literal(node: Const) -> str:
    value = node.value.as_py()
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if pa.types.is_timestamp(node.type):
        return f"TIMESTAMP '{value}'"
    if pa.types.is_date(node.type):
        return f"DATE '{value}'"
    if pa.types.is_duration(node.type):
        return f"INTERVAL '{node.value.cast(pa.int64()).as_py()}' {_UNITS[node.type.unit]}"
    return f"{value.normalize():f}" if isinstance(value, decimal.Decimal) else str(value)


_UNITS = {"s": "SECOND", "ms": "MILLISECOND", "us": "MICROSECOND", "ns": "NANOSECOND"}


def _navigation(node: At) -> str:
    text, nav = sql(node.value, node.label), node.nav
    if nav.kind == "first" or (nav.kind == "last" and (nav.offset or not node.label or nav.final)):
        offset = f", {nav.offset}" if nav.offset else ""
        text = f"{'FINAL ' if nav.final else ''}{nav.kind.upper()}({text}{offset})"
    if nav.shift:
        text = f"{'PREV' if nav.shift < 0 else 'NEXT'}({text}{f', {abs(nav.shift)}' if abs(nav.shift) > 1 else ''})"
    return text


def _operation(node: Call, label: str) -> str:
    args = [sql(arg, label) for arg in node.args]
    inner = [f"({text})" if _rank(arg) <= _rank(node) else text for text, arg in zip(args, node.args, strict=True)]
    if node.op == "CAST":
        return args[0]
    if node.op == "NEG":
        return f"-{inner[0]}"
    if node.op == "NOT":
        return f"NOT {inner[0]}"
    if node.op == "IS NULL":
        return f"{inner[0]} IS NULL"
    if node.op == "LIKE":
        return f"{inner[0]} LIKE '{node.option}'"
    if node.op == "CASE":
        parts = [f"WHEN {args[at]} THEN {args[at + 1]}" for at in range(0, len(args) - 1, 2)]
        return f"CASE {' '.join(parts)} ELSE {args[-1]} END"
    if node.op in _RANKS:
        return f" {node.op} ".join(inner)
    option = f", {node.option}" if node.op == "ROUND" and node.option else ""
    return f"{node.op}({', '.join(args)}{option})"


# How tightly operators bind; what binds no tighter than its surroundings gets parentheses.
_RANKS = {"OR": 0, "AND": 1, "NOT": 2, "IS NULL": 3, "LIKE": 3, "=": 3, "<>": 3, ">": 3, ">=": 3, "<": 3, "<=": 3}
_RANKS |= {"+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "NEG": 6}


def _rank(node: Node) -> int:
    if isinstance(node, Call) and node.op == "CAST":
        return _rank(node.args[0])
    return _RANKS.get(node.op, 9) if isinstance(node, Call) else 10
