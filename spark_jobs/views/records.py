"""The history of a lake as one Arrow table: what the table `history` holds, and what the journals hold beyond it.

Who looks writes nothing, so journals are read where they lie instead of being folded. A lake is looked at again and again:
files of the table are read once, and of a journal only what is new.
"""

from __future__ import annotations

import datetime as dt
import io
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from schemas import history
from schemas.types import TIMESTAMP
from spark_jobs.lake.history import parsed
from spark_jobs.lake.journals import journals
from spark_jobs.lake.tables import Lake, file_names
from spark_jobs.views.handles import looking_at

# Of the phases of a batch, when it began and when it was saved; the others of batches long past interest nobody.
_PHASES = ("detect.started", "detect.saved")
# How many lakes are kept in memory: that of 100,000 batches takes about 60 MB.
_LAKES = 8
_AS_TEXT = pa.schema([pa.field(f.name, pa.string()) if f.name == "at" else f for f in history.SCHEMA])
# A record has some hundred bytes; Arrow cannot read one that is longer than this.
_LONGEST_LINE = 4_000_000


def records_of(lake: Lake) -> pa.Table:
    """All that is known of a lake's history, in the columns of `history`, in no order; `us` is `at` in microseconds."""
    with _guard:
        kept = _kept.setdefault(lake.root, _Records(lake))
        _kept.move_to_end(lake.root)
        while len(_kept) > _LAKES:
            _kept.popitem(last=False)
    return kept.table()


@dataclass
class _Tail:
    """What a journal holds from one of its lines on."""

    line: int
    size: int  # how far it was read: to the end of its last whole line
    rows: pa.Table


class _Records:
    """One lake, as far as it was read."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._folded = history.SCHEMA.empty_table()
        self._lines: dict[int, int] = {}  # how many lines of each journal the table holds
        self._tails: dict[int, _Tail] = {}

    def table(self) -> pa.Table:
        with self._lock:
            self._read_table()
            tails = [self._tail(attempt, file) for attempt, file in journals(self._lake).items()]
            rows = pa.concat_tables([self._folded, *tails])
            return rows.append_column("us", rows["at"].cast(pa.int64()))

    def _read_table(self) -> None:
        if not self._lake.has("history"):
            return self._forget()
        with looking_at(self._lake, "history") as handle:
            names = set(file_names(handle))
            if not self._names <= names:  # somebody has written the table anew
                self._forget()
            if new := sorted(names - self._names):
                rows = self._lake.read_version("history", handle, names=new).select(history.SCHEMA.names)
                self._take(rows.cast(history.SCHEMA))
                self._names |= set(new)

    def _take(self, rows: pa.Table) -> None:
        for count in pc.value_counts(rows["attempt"]).to_pylist():  # a line of a journal is a row of the table
            self._lines[count["values"]] = self._lines.get(count["values"], 0) + count["counts"]
        wanted = (pc.field("kind") != "phase") | pc.field("name").isin(_PHASES)
        self._folded = pa.concat_tables([self._folded, rows.filter(wanted)]).combine_chunks()

    def _forget(self) -> None:
        self._names, self._folded, self._lines = set(), history.SCHEMA.empty_table(), {}

    def _tail(self, attempt: int, file: Path) -> pa.Table:
        folded, tail = self._lines.get(attempt, 0), self._tails.get(attempt)
        size = file.stat().st_size
        if tail is None or tail.line > folded or tail.size > size:
            tail = self._tails[attempt] = _opened(file, folded)
        if size > tail.size:
            _read_on(tail, file, attempt)
        if tail.line < folded:
            tail.rows, tail.line = tail.rows.slice(folded - tail.line), folded
        return tail.rows


def _opened(file: Path, line: int) -> _Tail:
    """A journal from a line on, of which nothing was read yet."""
    size = 0
    if line:
        with file.open("rb") as lines:
            size = sum(len(text) for text, _ in zip(lines, range(line), strict=False))
    return _Tail(line, size, history.SCHEMA.empty_table())


def _read_on(tail: _Tail, file: Path, attempt: int) -> None:
    with file.open("rb") as journal:
        journal.seek(tail.size)
        new = journal.read()
    whole = new[: new.rfind(b"\n") + 1]  # a line without its end is still being written
    if whole:
        tail.rows = pa.concat_tables([tail.rows, _rows(whole, attempt)])
        tail.size += len(whole)


def _rows(lines: bytes, attempt: int) -> pa.Table:
    """Arrow reads a hundred times as fast as Python; a damaged line is Python's business."""
    import pyarrow.json as json_

    options = json_.ParseOptions(explicit_schema=_AS_TEXT, unexpected_field_behavior="error")
    try:
        read = json_.read_json(io.BytesIO(lines), json_.ReadOptions(block_size=_LONGEST_LINE), options)
        at = read["at"].cast(TIMESTAMP)
        found = read.set_column(read.schema.get_field_index("at"), "at", at).select(history.SCHEMA.names).cast(history.SCHEMA)
        if found.num_rows == lines.count(b"\n"):
            return found
    except (pa.ArrowException, KeyError, ValueError):
        pass
    rows = [parsed(line, attempt) for line in lines.split(b"\n")[:-1]]
    return pa.Table.from_pylist([{**row, "at": dt.datetime.fromisoformat(row["at"])} for row in rows], history.SCHEMA)


_guard = threading.Lock()
_kept: OrderedDict[Path, _Records] = OrderedDict()
