"""Landing files: finding them, reading three formats, and separating usable rows from those that are not.

Nothing here changes a landing file, and no row is lost: it is either an event or a quarantine row that says
which file, which row and why.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv
from pyarrow import json as pa_json

from schemas.types import LONGEST_DECIMAL, TIMESTAMP, attribute_word
from spark_jobs.errors import RepriseError, suggest
from spark_jobs.pipeline import Source

# Columns that travel with the events until they are numbered; no attribute can have such a name.
ROW, FILE, POSITION = "__row", "__file", "__position"

FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_AN_HOUR = dt.timedelta(hours=1)
_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
# Outside these years a time stamp is a mistake of units or of a clock; one such row would push stream time out of
# reach for all that follow.
_EARLIEST, _LATEST = 0, 7_258_118_400_000_000  # 1970 to 2200
# How much of an unusable row is kept as evidence.
_CONTENT_CHARS = 500


@dataclass(frozen=True)
class LandingFile:
    """A file below the landing folder; `file` is its path relative to that folder."""

    path: str
    file: str

    @property
    def partition(self) -> dict[str, str]:
        """The hive parts of the path: date=2026-01-01/hour=03/source=s1."""
        parts = (part.partition("=") for part in Path(self.file).parts[:-1])
        return {name: value for name, equals, value in parts if equals}

    @property
    def group(self) -> str:
        """All sources of one hour are numbered together, so that their events interleave by arrival."""
        return "/".join(f"{name}={value}" for name, value in self.partition.items() if name != "source")

    @property
    def order(self) -> tuple[str, str]:
        """Partition by partition; values that are numbers compare as numbers: hour=9 comes before hour=10."""
        return _padded(self.group), _padded(self.file)


def find_files(landing: Path) -> tuple[list[LandingFile], list[LandingFile]]:
    """The files of all partitions in order, and those whose format is not known. Hidden and _ files are not data."""
    if not landing.is_dir():
        if landing.exists():
            raise RepriseError(f"{landing} is a file, not a landing folder; nothing was ingested. Name the folder it lies in")
        raise RepriseError(f"landing folder {landing} does not exist; nothing was ingested")
    root = landing.resolve()
    known: list[LandingFile] = []
    unknown: list[LandingFile] = []
    for path in _files_below(root):
        relative = path.relative_to(root)
        if any(part.startswith((".", "_")) for part in relative.parts):
            continue
        (known if path.suffix in FORMATS else unknown).append(LandingFile(str(path), str(relative)))
    by_order = attrgetter("order")
    return sorted(known, key=by_order), sorted(unknown, key=by_order)


def missing_hours(known: Iterable[LandingFile], new: Iterable[LandingFile]) -> list[str]:
    """Stretches of hours for which a source has no partition, each between one it has and one that is new."""
    hours: dict[str, set[dt.datetime]] = defaultdict(set)
    fresh: dict[str, set[dt.datetime]] = defaultdict(set)
    for files, places in ((known, hours), (new, fresh)):
        for file in files:
            if hour := _hour(file.partition):
                places[file.partition.get("source", "")].add(hour)
    gaps = []
    for source, late in sorted(fresh.items()):
        every = sorted(hours[source] | late)
        for before, after in pairwise(every):
            count = int((after - before) / _AN_HOUR) - 1
            if count and (after in late or before in late):
                stretch = f"{before + _AN_HOUR:%Y-%m-%d %H}h" + (f" to {after - _AN_HOUR:%Y-%m-%d %H}h" if count > 1 else "")
                gaps.append(f"{stretch} of source {source}" if source else stretch)
    return gaps


def _hour(partition: dict[str, str]) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(f"{partition['date']} {partition['hour']}", "%Y-%m-%d %H").replace(tzinfo=dt.UTC)
    except (KeyError, ValueError):
        return None  # partitions of another kind: nobody knows which should be there


def _files_below(root: Path) -> Iterator[Path]:
    """All files, also behind linked folders; a link back to a folder above is followed once."""
    seen = set()
    for folder, below, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        yield from (Path(folder, name) for name in names)


def _padded(path: str) -> str:
    return re.sub(r"(?<==)\d+(?=/|$)", lambda number: number[0].zfill(20), path)


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


Rejected = tuple[int | None, str, str | None]  # row, reason, content


@dataclass
class Read:
    """The rows of one landing file: `events` in the log's own order, and what was wrong with the others."""

    events: pa.Table  # source, source_seq, type, key, ts, arrival_ts, the attributes; `__row` counts from 1
    rejected: list[Rejected]
    rows: int


def read_landing_file(file: LandingFile, source: Source) -> Read:
    """Read, convert and check one file. An unreadable file is one rejected row without a number."""
    rejected: list[Rejected] = []
    try:
        raw, rows = _read(file.path, rejected, _exact_columns(source))
    except (pa.ArrowInvalid, pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        reason = f"the file cannot be read: {str(error).splitlines()[0][:200]}"
        return Read(_empty(source), [(None, reason, None)], 0)
    wanted = _wanted(source)
    missing = [column for column, _ in wanted.values() if column is not None and column not in raw.column_names]
    if missing:
        have = [name for name in raw.column_names if name != ROW]
        reason = f"column '{missing[0]}' is missing{suggest(missing[0], have)}"
        return Read(_empty(source), [*rejected, *[(int(r), reason, None) for r in np.asarray(raw[ROW])]], rows)
    try:
        events, bad = _converted(raw, wanted, source, file)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        reason = f"the file cannot be converted: {str(error).splitlines()[0][:200]}"
        return Read(_empty(source), [(None, reason, None)], 0)
    reasons = [(int(raw[ROW][i].as_py()), reason, _content(raw, i)) for i, reason in sorted(bad.items())]
    if bad:
        keep = np.ones(raw.num_rows, bool)
        keep[list(bad)] = False
        events = events.filter(pa.array(keep))
    return Read(events, [*rejected, *reasons], rows)


def _read(path: str, rejected: list[Rejected], exact: dict[str, pa.DataType]) -> tuple[pa.Table, int]:
    """The raw rows with their numbers, counted from 1 without a header line, and how many the file has."""
    kind = FORMATS[Path(path).suffix]
    if kind == "parquet":
        table = pq.read_table(path, partitioning=None)
    elif kind == "csv":
        return _read_csv(path, rejected)
    else:
        return _read_jsonl(path, rejected, exact)
    return table.append_column(ROW, pa.array(np.arange(1, table.num_rows + 1))), table.num_rows


def _read_csv(path: str, rejected: list[Rejected]) -> tuple[pa.Table, int]:
    """All columns as text: types are checked row by row afterwards, not guessed per block."""
    with open(path, encoding="utf-8-sig") as file:
        header = next((line for line in file if line.strip()), "")
    if not header:
        return pa.table({ROW: pa.array([], pa.int64())}), 0
    names = pa_csv.read_csv(pa.py_buffer(header.encode())).column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"column '{twice[0]}' stands twice in the header")
    broken: list[int] = []

    def skip(row: Any) -> str:
        number = int(row.number) - 1  # pyarrow counts the header line
        broken.append(number)
        rejected.append((
            number,
            f"the line has {row.actual_columns} values, the header {row.expected_columns}",
            str(row.text)[:_CONTENT_CHARS],
        ))
        return "skip"

    table = pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(use_threads=False),  # row numbers are only known without threads
        parse_options=pa_csv.ParseOptions(invalid_row_handler=skip, newlines_in_values=False),
        convert_options=pa_csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=True, null_values=[""]
        ),
    )
    rows = table.num_rows + len(broken)
    numbers = np.setdiff1d(np.arange(1, rows + 1), broken)
    return table.append_column(ROW, pa.array(numbers)), rows


def _read_jsonl(path: str, rejected: list[Rejected], exact: dict[str, pa.DataType]) -> tuple[pa.Table, int]:
    """The whole file at once; only if that fails, line by line to find the ones to blame.

    Columns that are to be text are named as such: a guess would turn a key that looks like a date into one. And so are
    decimals, of which a guess would make doubles.
    """
    try:
        if Path(path).stat().st_size == 0:
            return pa.table({ROW: pa.array([], pa.int64())}), 0
        schema = pa.schema(list(exact.items()))
        texts = [name for name, type_ in exact.items() if pa.types.is_string(type_)]
        table = pa_json.read_json(path, parse_options=pa_json.ParseOptions(explicit_schema=schema, newlines_in_values=False))
        table.select([name for name in texts if name in table.column_names]).validate(full=True)  # is it UTF-8?
        with open(path, "rb") as file:
            lines = sum(1 for line in file if line.strip())
        if lines == table.num_rows:
            return table.append_column(ROW, pa.array(np.arange(1, lines + 1))), lines
    except pa.ArrowInvalid:
        pass
    objects, numbers = [], []
    count = 0
    with open(path, "rb") as stream:
        for count, raw in enumerate((line for line in stream if line.strip()), 1):
            line = raw.decode(errors="backslashreplace")
            try:
                value = json.loads(raw.decode(), parse_float=_Written)
            except ValueError as error:
                rejected.append((count, f"not valid JSON: {error}", line[:_CONTENT_CHARS]))
                continue
            if not isinstance(value, dict):
                rejected.append((count, "the line is not a JSON object", line[:_CONTENT_CHARS]))
                continue
            objects.append({name: _as_text(v) for name, v in value.items()})
            numbers.append(count)
    names = sorted({name for value in objects for name in value})
    columns = {name: pa.array([value.get(name) for value in objects], pa.string()) for name in names}
    return pa.table({**columns, ROW: pa.array(numbers, pa.int64())}), count


class _Written(float):
    """A number that remembers how it was written: a decimal does not survive a double."""

    def __new__(cls, text: str) -> _Written:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.text if isinstance(value, _Written) else json.dumps(value)


def _wanted(source: Source) -> dict[str, tuple[str | None, pa.DataType]]:
    """Reprise's column: the log's column and the type it must have."""
    columns = source.columns
    fixed = {
        "source": (columns.source, pa.string()),
        "source_seq": (columns.source_seq, pa.int64()),
        "type": (columns.type, pa.string()),
        "key": (columns.key, pa.string()),
        "ts": (columns.ts, TIMESTAMP),
        "arrival_ts": (columns.arrival_ts, TIMESTAMP),
    }
    own = {name: (a.column or name, source.attribute_types[name]) for name, a in source.attributes.items()}
    return {**fixed, **own}


def _exact_columns(source: Source) -> dict[str, pa.DataType]:
    """The log's columns whose type in JSON may not be guessed, and the type to read them as."""
    columns: dict[str, pa.DataType] = {}
    for column, type_ in _wanted(source).values():
        if column is not None and (pa.types.is_string(type_) or pa.types.is_date(type_)):
            columns[column] = pa.string()
        elif column is not None and pa.types.is_decimal(type_):
            columns.setdefault(column, pa.decimal128(LONGEST_DECIMAL, type_.scale))
    return columns


def _converted(
    raw: pa.Table, wanted: dict[str, tuple[str | None, pa.DataType]], source: Source, file: LandingFile
) -> tuple[pa.Table, dict[int, str]]:
    """The events of all rows, and by row index why some cannot be used."""
    bad: dict[int, str] = {}
    columns: dict[str, Any] = {ROW: raw[ROW]}
    for name, (column, type_) in wanted.items():
        if column is None:
            columns[name] = _default(name, raw, file)
            continue
        values, failed = _cast(raw[column], type_, source.ts_unit)
        if name in ("ts", "arrival_ts"):
            values = _in_range(values)
            for i in np.flatnonzero(np.asarray(pc.is_null(values)) & np.asarray(pc.is_valid(raw[column])) & ~failed):
                bad.setdefault(int(i), f"{column}: {raw[column][int(i)].as_py()!r} lies outside the years 1970 to 2199")
                failed[i] = True
        if name == "source_seq":  # sequence numbers are counted, so there are no negative ones
            failed |= np.asarray(pc.fill_null(pc.less(values, 0), False))
        for i in np.flatnonzero(failed):
            bad.setdefault(int(i), f"{column}: {raw[column][int(i)].as_py()!r} is not a valid {attribute_word(type_)}")
        if name not in source.attributes:
            for i in np.flatnonzero(np.asarray(pc.is_null(values)) & ~failed):
                bad.setdefault(int(i), f"{column} is missing")
        columns[name] = values
    if wanted["arrival_ts"][0] is None:
        columns["arrival_ts"] = _running_max(columns["ts"])
    return pa.table(columns), bad


def _default(name: str, raw: pa.Table, file: LandingFile) -> Any:
    n = raw.num_rows
    if name == "source":
        return pa.repeat(file.partition.get("source", "default"), n)
    if name == "source_seq":
        return raw[ROW]
    if name == "arrival_ts":
        return pa.nulls(n, TIMESTAMP)
    return pa.repeat("", n)


def _running_max(ts: Any) -> Any:
    """Without a column of its own: an event cannot have arrived before those that stand above it in its file."""
    values = np.asarray(pc.fill_null(ts.cast(pa.int64()), _EARLIEST))
    return pa.array(np.maximum.accumulate(values) if values.size else values, TIMESTAMP)


def _cast(column: Any, type_: pa.DataType, unit: str | None) -> tuple[Any, Any]:
    """Values of the wanted type, and which non-null inputs have none."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if pa.types.is_timestamp(type_):
        values = _cast_time(column, unit)
    elif pa.types.is_string(type_):
        values = column.cast(pa.string()) if not pa.types.is_nested(column.type) else pa.nulls(len(column), pa.string())
    elif pa.types.is_boolean(type_):
        values = _cast_boolean(column)
    elif pa.types.is_date(type_):
        values = _cast_date(column)
    elif pa.types.is_decimal(type_):
        values = _cast_decimal(column, type_)
    else:
        values = _cast_number(column, type_)
    failed = np.asarray(pc.and_(pc.is_valid(column), pc.is_null(values)))
    return values, failed


def _cast_time(column: Any, unit: str | None) -> Any:
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date(column.type):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
    elif pa.types.is_integer(column.type) and unit:
        numbers = column.cast(pa.int64(), safe=False)
        limit = _LATEST // _UNIT[unit]
        inside = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, limit))
        micros = pc.multiply(pc.if_else(inside, numbers, pa.scalar(None, pa.int64())), _UNIT[unit])
    elif pa.types.is_string(column.type):
        if unit:
            return _cast_time(_cast_number(column, pa.int64()), unit)
        return _parsed_times(column)
    else:
        return pa.nulls(len(column), TIMESTAMP)
    return micros.cast(TIMESTAMP)


def _parsed_times(texts: Any) -> Any:
    """ISO 8601. A date has to be there, for pandas reads "now" too; and each text gets a zone of its own, for pandas
    hands the zone of one row on to those below it that have none. No zone means UTC."""
    texts = pc.utf8_trim_whitespace(texts)
    dated = pc.match_substring_regex(texts, r"^\d{4}-\d{2}-\d{2}([T ]|$)")
    texts = pc.if_else(pc.fill_null(dated, False), texts, pa.scalar(None, pa.string()))
    midnight = pc.binary_join_element_wise(texts, "T00:00:00", "")
    texts = pc.if_else(pc.match_substring_regex(texts, "[T ]"), texts, midnight)
    zoned = pc.match_substring_regex(texts, r"[T ].*([Zz]|[+-]\d{2}(:?\d{2})?)$")
    texts = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    parsed = pd.to_datetime(pd.Series(texts.to_pandas(), dtype=object), errors="coerce", utc=True, format="ISO8601")
    return pa.array(parsed.astype("datetime64[us, UTC]"), TIMESTAMP)


def _in_range(times: Any) -> Any:
    micros = times.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(micros, _EARLIEST), pc.less(micros, _LATEST))
    return pc.if_else(inside, micros, pa.scalar(None, pa.int64())).cast(TIMESTAMP)


def _cast_number(column: Any, type_: pa.DataType) -> Any:
    if pa.types.is_string(column.type):
        # Text to the widest type that keeps it exact: a 64-bit sequence number does not survive a double.
        if pa.types.is_integer(type_):
            clean = pc.replace_substring_regex(pc.utf8_trim_whitespace(column), r"^\+", "")
            # 19 digits may be too many for 64 bits: a decimal holds them exactly, and is then compared.
            fits = pc.match_substring_regex(clean, r"^-?\d{1,19}$")
            exact = pc.if_else(pc.fill_null(fits, False), clean, pa.scalar(None, pa.string())).cast(pa.decimal128(38, 0))
            return _within_64_bits(exact)
        return pa.array(pd.to_numeric(pd.Series(column.to_pandas()), errors="coerce"), type_, from_pandas=True)
    if pa.types.is_boolean(column.type) or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    ):
        return pa.nulls(len(column), type_)
    if pa.types.is_integer(type_) and pa.types.is_uint64(column.type):
        return _within_64_bits(column.cast(pa.decimal128(38, 0)))
    if pa.types.is_integer(type_) and not pa.types.is_integer(column.type):
        floats = column.cast(pa.float64())
        whole = pc.and_(pc.equal(floats, pc.round(floats)), pc.less(pc.abs(floats), 2.0**53))
        return pc.if_else(pc.fill_null(whole, False), floats, pa.scalar(None, pa.float64())).cast(type_)
    return column.cast(type_, safe=False)


def _within_64_bits(exact: Any) -> Any:
    """Decimals without a fraction as 64-bit integers; NULL where there is no such integer."""
    low, high = (pa.scalar(Decimal(bound), pa.decimal128(38, 0)) for bound in (-(2**63), 2**63 - 1))
    inside = pc.and_(pc.greater_equal(exact, low), pc.less_equal(exact, high))
    return pc.if_else(pc.fill_null(inside, False), exact, pa.scalar(None, exact.type)).cast(pa.int64())


def _cast_boolean(column: Any) -> Any:
    if pa.types.is_boolean(column.type):
        return column
    if not pa.types.is_string(column.type):
        return pa.nulls(len(column), pa.bool_())
    lower = pc.utf8_lower(column)
    return pc.if_else(pc.equal(lower, "true"), True, pc.if_else(pc.equal(lower, "false"), False, pa.scalar(None, pa.bool_())))


def _cast_date(column: Any) -> Any:
    """Dates as they are, time stamps at midnight, and text as 2026-01-31."""
    if pa.types.is_date(column.type):
        return column.cast(pa.date32())
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.timestamp("us"))
        whole = pc.equal(micros, pc.floor_temporal(micros, unit="day"))
        return pc.if_else(whole, micros, pa.scalar(None, micros.type)).cast(pa.date32())
    if not pa.types.is_string(column.type):
        return pa.nulls(len(column), pa.date32())
    texts = pc.utf8_trim_whitespace(column)
    dated = pc.match_substring_regex(texts, r"^\d{4}-\d{2}-\d{2}$")
    texts = pc.if_else(pc.fill_null(dated, False), texts, pa.scalar(None, pa.string()))
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid:
        return pa.array([_date(text) for text in texts.to_pylist()], pa.date32())


def _date(text: str | None) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if text else None
    except ValueError:
        return None


def _cast_decimal(column: Any, type_: pa.DataType) -> Any:
    """Numbers that have no more digits than the type; a digit too many is a wrong value, not one to round."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return pa.nulls(len(column), type_)
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    plain = pc.replace_substring_regex(pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1"), r"^([+-]?)0+(\d)", r"\1\2")
    whole, fraction = type_.precision - type_.scale, type_.scale
    fits = rf"^[+-]?(\d{{1,{whole}}}\.?|\d{{0,{whole}}}\.\d{{1,{fraction}}})$" if 0 < whole < type_.precision else None
    simple = pc.fill_null(pc.match_substring_regex(plain, fits), False) if fits else pa.repeat(False, len(column))
    values = pc.if_else(simple, plain, pa.scalar(None, pa.string())).cast(type_)
    others = np.flatnonzero(np.asarray(pc.and_(pc.is_valid(column), pc.invert(simple))))
    if not others.size:
        return values
    exact = values.to_pylist()
    for i in others:
        exact[i] = _decimal(texts[int(i)].as_py(), type_)
    return pa.array(exact, type_)


def _decimal(text: str, type_: pa.DataType) -> Decimal | None:
    """Exponents and other rare ways to write a number."""
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text, re.ASCII):
        return None
    try:
        value = Decimal(text).normalize(Context(prec=2 * LONGEST_DECIMAL, traps=[Inexact, InvalidOperation]))
    except (Inexact, InvalidOperation):
        return None
    exponent = int(value.as_tuple().exponent)
    return value if -exponent <= type_.scale and value.adjusted() < type_.precision - type_.scale else None


def _content(raw: pa.Table, row: int) -> str:
    values = {name: raw[name][row].as_py() for name in raw.column_names if name != ROW}
    return json.dumps(values, default=str)[:_CONTENT_CHARS]


def _empty(source: Source) -> pa.Table:
    columns = {name: pa.array([], type_) for name, (_, type_) in _wanted(source).items()}
    return pa.table({ROW: pa.array([], pa.int64()), **columns})
