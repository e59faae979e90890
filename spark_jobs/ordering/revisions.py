"""Revisions: the difference between what was published and what is right, as rows to retract and matches to assert.

Two complex events are the same if everything they say is: key, window, events, symbols, when they were decided, measures.
Numbers are no part of it; they say when something was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.columns import int64s
from spark_jobs.cep.sequencer import LOG_SN, plain

ASSERT, RETRACT = "assert", "retract"
# What the columns of matches, not yet numbered, are called once they are published.
_PUBLISHED_AS = {"_at_ts": "decided_ts", "_at_sn": "decided_sn"}
_SAID = ("key", "y", "ts", "symbols", "sns", "timed_out", "decided_ts", "decided_sn")
_BETWEEN, _NOTHING = "\x1f", "\x00"

Bools = npt.NDArray[np.bool_]


class Revision(NamedTuple):
    """What has to be published so that the net of everything is right."""

    retract: pa.Table  # rows as they were published
    assert_: pa.Table  # matches, not yet numbered


def net(published: pa.Table) -> pa.Table:
    """The complex events that stand: asserted, and not retracted since."""
    if "revision" not in published.column_names:
        return published
    retracted = pc.equal(published["revision"], RETRACT)
    gone = published.filter(retracted)["of"]
    return published.filter(pc.invert(pc.or_(retracted, pc.is_in(published["ordinal"], value_set=gone.combine_chunks()))))


def revision(standing: pa.Table, right: pa.Table, measures: Sequence[str]) -> Revision:
    """On demand: only what differs is touched."""
    theirs, ours = said(standing, measures), said(right, measures)
    return Revision(
        standing.filter(pc.invert(pc.is_in(theirs, value_set=ours))),
        right.filter(pc.invert(pc.is_in(ours, value_set=theirs))),
    )


def within(decided: pa.ChunkedArray, stretches: Sequence[tuple[int, int]]) -> Bools:
    """Which of them were decided in one of some stretches of time."""
    at = int64s(decided)
    inside = np.zeros(at.size, bool)
    for after, until in stretches:
        inside |= (at > after) & (at <= until)
    return inside


def said(complex_events: pa.Table, measures: Sequence[str]) -> pa.Array:
    """All that each complex event says, as one text."""
    table = complex_events
    if LOG_SN in table.column_names:  # numbers of matches over operators are not the log's
        table = table.drop_columns(["_at_sn"]).rename_columns({LOG_SN: "decided_sn"})
    table = table.rename_columns([_PUBLISHED_AS.get(name, name) for name in table.column_names])
    texts = [text_of(table[name]) for name in (*_SAID, *(name for name in measures if name in table.column_names))]
    joined = pc.binary_join_element_wise(*texts, _BETWEEN)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def text_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as text, alike for values that are alike, NULL among them."""
    type_ = plain(column.type)
    column = column.cast(type_) if column.type != type_ else column
    if pa.types.is_list(type_):
        # A symbol has no comma, and neither has a number.
        return pc.binary_join(column.cast(pa.list_(pa.string())), ",")
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    return pc.fill_null(column.cast(pa.string()), _NOTHING)


def as_asserted(stamped: pa.Table, final: int) -> pa.Table:
    """Complex events that say whether they may still be taken back."""
    count = stamped.num_rows
    speculative = pc.greater(stamped["decided_ts"].cast(pa.int64()), final)
    return (
        stamped
        .append_column("revision", _coded(ASSERT, count))
        .append_column("of", pa.nulls(count, pa.int64()))
        .append_column("speculative", speculative)
    )  # fmt: skip


def _coded(text: str, count: int) -> pa.DictionaryArray:
    """One text for all rows, which costs nothing to write."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))
