"""Where types meet: which values can be compared and calculated with, and the casts that make it so.

Numbers meet as 64-bit integers, exact decimals or doubles; moments in the finer of their units, without a zone as UTC.
Literals are cast while the text is read, so what does not fit is refused with its place.
"""

from __future__ import annotations

import decimal

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep import nodes
from spark_jobs.cep.nodes import Call, Const, Node, is_number, is_text, sql
from spark_jobs.errors import ExpressionError


def check_ordered(what: str, node: Node, place: int) -> None:
    type_ = node.type
    ordered = is_number(type_) or is_text(type_) or pa.types.is_boolean(type_) or pa.types.is_null(type_)
    if not (ordered or pa.types.is_temporal(type_)):
        raise ExpressionError(f"{what} needs values that have an order, not {type_}", place)


def unified(parts: list[Node], text: str, verb: str) -> list[Node]:
    """All parts cast to their common type."""
    parts = _exact_literals(parts)
    type_ = parts[0].type
    for part in parts[1:]:
        wider = _common(type_, part.type)
        if wider is None:
            raise ExpressionError(f"'{text}' {verb} {type_} with {part.type}", parts[0].place)
        type_ = wider
    return [as_type(part, type_) for part in parts]


def _exact_literals(parts: list[Node]) -> list[Node]:
    """1.5 and 2 become decimals of just enough digits where they meet decimals, so that nothing is rounded."""
    if not any(pa.types.is_decimal(part.type) for part in parts):
        return parts
    return [_exact(part) if isinstance(part, Const) else part for part in parts]


def _exact(const: Const) -> Const:
    value = const.exact
    if value is None and pa.types.is_integer(const.type) and const.value.is_valid:
        value = decimal.Decimal(const.value.as_py())
    if value is None:
        return const
    digits, scale = len(value.as_tuple().digits), max(-int(value.as_tuple().exponent), 0)
    type_ = pa.decimal128(max(digits, scale, 1), scale)
    return Const(type_, const.place, pa.scalar(value, type_))


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type both sides can be cast to without loss, except integers to doubles; None if there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    if is_text(left) and is_text(right):
        return pa.large_string() if pa.types.is_large_string(left) or pa.types.is_large_string(right) else pa.string()
    if pa.types.is_duration(left) and pa.types.is_duration(right):
        return pa.duration(_finer(left.unit, right.unit))
    if pa.types.is_date(left) and pa.types.is_date(right):
        return pa.date32()
    if _is_moment(left) and _is_moment(right):
        return pa.timestamp(_finer(_unit(left), _unit(right)), nodes.UTC)
    return None


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return pa.int64()
    left, right = _decimal_type(left), _decimal_type(right)
    scale = max(left.scale, right.scale)
    return decimal_type(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def _decimal_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_):
        return type_
    return pa.decimal128(20 if pa.types.is_uint64(type_) else 19, 0)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """A decimal of that many digits; beyond what Arrow has, values that do not fit are an error when they come."""
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(min(precision, 76), scale)


def total_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_):
        return pa.decimal128(38, type_.scale)
    return pa.int64() if pa.types.is_integer(type_) else pa.float64()


def _is_moment(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def _unit(type_: pa.DataType) -> str:
    return "us" if pa.types.is_date(type_) else str(type_.unit)


def _finer(left: str, right: str) -> str:
    units = ["s", "ms", "us", "ns"]
    return units[max(units.index(left), units.index(right))]


def as_type(node: Node, type_: pa.DataType) -> Node:
    """`node` cast to `type_`; literals at once, so that what does not fit is refused with its place."""
    if node.type == type_:
        return node
    if isinstance(node, Const):
        try:
            return Const(type_, node.place, nodes.cast_to(node.value, type_), node.exact)
        except pa.ArrowException:
            raise ExpressionError(f"{sql(node)} does not fit into {type_}", node.place) from None
    return Call(type_, node.place, "CAST", (node,))


def widened(node: Node) -> Node:
    """Numbers as 64 bits, text with one layout: what operations work on."""
    type_ = node.type
    if pa.types.is_integer(type_):
        return as_type(node, pa.int64())
    if pa.types.is_floating(type_):
        return as_type(node, pa.float64())
    return as_type(node, pa.string()) if pa.types.is_string_view(type_) else node


def arithmetic(op: str, left: Node, right: Node, place: int) -> Node:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return _null_result(op, left, right, place)
    if is_number(left.type) and is_number(right.type):
        return _number_arithmetic(op, left, right, place)
    timed = _time_arithmetic(op, left, right, place)
    if timed is None:
        strange = right.type if is_number(left.type) else left.type
        raise ExpressionError(f"'{sql(left)} {op} {sql(right)}' needs numbers, not {strange}", place)
    return timed


def _null_result(op: str, left: Node, right: Node, place: int) -> Node:
    """NULL; of the type the other operand would give."""
    other = right if pa.types.is_null(left.type) else left
    if pa.types.is_null(other.type):
        return other
    typed = as_type(left if other is right else right, other.type)
    return arithmetic(op, typed if other is right else left, right if other is right else typed, place)


def _number_arithmetic(op: str, left: Node, right: Node, place: int) -> Node:
    if op == "/":
        return Call(pa.float64(), place, op, (as_type(left, pa.float64()), as_type(right, pa.float64())))
    left, right = _exact_literals([left, right])
    if not (pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type)):
        type_ = _common_number(left.type, right.type)
        return Call(type_, place, op, (as_type(left, type_), as_type(right, type_)))
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return Call(pa.float64(), place, op, (as_type(left, pa.float64()), as_type(right, pa.float64())))
    return _decimal_arithmetic(op, left, right, place)


def _decimal_arithmetic(op: str, left: Node, right: Node, place: int) -> Node:
    """Exact. Results may need more digits than Arrow's 76: then the operands' are limited, and checked by the cast."""
    common = _common_number(left.type, right.type)
    if op == "%":
        return Call(common, place, op, (as_type(left, common), as_type(right, common)))
    if op == "*":
        types = [_decimal_type(left.type), _decimal_type(right.type)]
        precision, scale = sum(t.precision for t in types) + 1, sum(t.scale for t in types)
        if precision > 38:
            types = [pa.decimal256(t.precision if precision <= 76 else min(t.precision, 37), t.scale) for t in types]
        if scale > 72 or any(t.scale > t.precision for t in types):
            raise ExpressionError(f"'{sql(left)} * {sql(right)}' needs more than 76 digits", place)
    else:
        types = [common if common.precision < 38 else pa.decimal256(min(common.precision, 75), common.scale)] * 2
    kernel = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[op]
    result = kernel(pa.scalar(None, types[0]), pa.scalar(None, types[1])).type
    return Call(result, place, op, (as_type(left, types[0]), as_type(right, types[1])))


def _time_arithmetic(op: str, left: Node, right: Node, place: int) -> Node | None:
    """ts - ts, ts + interval, interval + interval, interval * integer; None where it has no meaning."""
    moments = [_is_moment(left.type), _is_moment(right.type)]
    spans = [pa.types.is_duration(left.type), pa.types.is_duration(right.type)]
    if op == "-" and all(moments):
        type_ = pa.timestamp(_finer(_unit(left.type), _unit(right.type)), nodes.UTC)
        return Call(pa.duration(type_.unit), place, op, (as_type(left, type_), as_type(right, type_)))
    if (moments[0] and spans[1] and op in "+-") or (spans[0] and moments[1] and op == "+"):
        unit = _finer(_unit(left.type), _unit(right.type))
        moment, span = pa.timestamp(unit, nodes.UTC), pa.duration(unit)
        return Call(
            moment, place, op, (as_type(left, moment if moments[0] else span), as_type(right, moment if moments[1] else span))
        )
    if all(spans) and op in "+-":
        type_ = pa.duration(_finer(left.type.unit, right.type.unit))
        return Call(type_, place, op, (as_type(left, type_), as_type(right, type_)))
    if op == "*" and any(spans) and (pa.types.is_integer(left.type) or pa.types.is_integer(right.type)):
        type_ = left.type if spans[0] else right.type
        return Call(type_, place, op, (widened(left), widened(right)))
    return None
