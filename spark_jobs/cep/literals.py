"""Literals of SQL expressions: numbers, texts, time stamps, dates, intervals; and the place of a node in the text."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import pyarrow as pa
from sqlglot import exp

from spark_jobs.cep import nodes
from spark_jobs.cep.nodes import Const, Node
from spark_jobs.cep.units import SQL_UNITS
from spark_jobs.errors import ExpressionError


def literal(node: Any) -> Const:
    place = place_of(node)
    if isinstance(node, exp.Null):
        return Const(pa.null(), place, pa.scalar(None))
    if isinstance(node, exp.Boolean):
        return Const(pa.bool_(), place, pa.scalar(bool(node.this)))
    if isinstance(node, exp.Interval):
        return _interval(node, place)
    if isinstance(node, exp.Cast):
        return _time_literal(node)
    if node.is_string:
        return Const(pa.string(), place, pa.scalar(str(node.this)))
    return _number(str(node.this), place)


def _number(text: str, place: int) -> Const:
    if text.isascii() and text.isdigit():
        if len(text) > 19 or int(text) >= 2**63:
            raise ExpressionError(f"{text} does not fit into 64 bits", place)
        return Const(pa.int64(), place, pa.scalar(int(text)))
    if not re.fullmatch(r"[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?", text) or not re.search(r"[0-9]", text):
        raise ExpressionError(f"'{text}' is not a number", place)
    value = float(text)
    if not math.isfinite(value):
        raise ExpressionError(f"{text} does not fit into a double", place)
    plain = "e" not in text.lower() and sum(letter.isdigit() for letter in text) <= 38
    return Const(pa.float64(), place, pa.scalar(value), decimal.Decimal(text) if plain else None)


_TIME_TYPES = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)


def _time_literal(node: exp.Cast) -> Const:
    """TIMESTAMP '..' and DATE '..' reach us as casts of text literals; no other cast is allowed."""
    given, place = node.this, place_of(node)
    is_date = node.to.this == exp.DataType.Type.DATE
    if not is_date and node.to.this not in _TIME_TYPES:
        raise ExpressionError("CAST is not allowed; write TIMESTAMP '2026-01-31 12:00:00' or DATE '2026-01-31'", place)
    word = "DATE" if is_date else "TIMESTAMP"
    if not (isinstance(given, exp.Literal) and given.is_string):
        raise ExpressionError(f"{word} needs a literal such as '2026-01-31{'' if is_date else ' 12:00:00'}'", place)
    try:
        if is_date:
            return Const(pa.date32(), place, pa.scalar(dt.date.fromisoformat(str(given.this)), pa.date32()))
        value = dt.datetime.fromisoformat(str(given.this))
        value = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return Const(pa.timestamp("us", nodes.UTC), place, pa.scalar(value, pa.timestamp("us", nodes.UTC)))
    except (ValueError, OverflowError):
        example = "a date such as '2026-01-31'" if is_date else "a time stamp such as '2026-01-31 12:00:00'"
        raise ExpressionError(f"'{given.this}' is not {example}", place) from None


def _interval(node: Any, place: int) -> Const:
    unit = str(node.args["unit"].name if isinstance(node.args.get("unit"), exp.Var) else "").upper().removesuffix("S")
    if unit not in SQL_UNITS:
        known = ", ".join(SQL_UNITS)
        raise ExpressionError(f"an INTERVAL needs a unit of fixed length ({known}), as in INTERVAL '5' MINUTE", place)
    text = node.this.name if isinstance(node.this, exp.Literal) else ""
    if not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,9})?", text):
        raise ExpressionError("an INTERVAL needs a literal number, as in INTERVAL '5' MINUTE", place)
    micros = decimal.Decimal(text) * SQL_UNITS[unit]
    if micros != int(micros) or abs(micros) >= 2**63:
        raise ExpressionError(f"INTERVAL '{text}' {unit} is not a number of microseconds in 64 bits", place)
    return Const(pa.duration("us"), place, pa.scalar(int(micros), pa.duration("us")))


def integer_of(node: Node) -> int | None:
    """The value of an integer literal, None for anything else."""
    return int(node.value.as_py()) if isinstance(node, Const) and pa.types.is_integer(node.type) else None


def place_of(node: Any) -> int:
    """The character of the leftmost word below `node` whose place the parser kept, or else of what contains it."""
    while node is not None:
        starts = [int(part.meta["start"]) for part in node.walk() if "start" in part.meta]
        if starts:
            return min(starts) + 1
        node = node.parent
    return 1
