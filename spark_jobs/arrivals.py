"""What came of an operator's inputs, in the order in which it came, as far as its order in time has to be known.

An input is the log, where corrections take back events, or another operator, where retractions take back complex events.
Only numbers and times are read here; what the events say, tasks read.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.corrections import Corrections
from spark_jobs.lake.outputs import Output
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.ordering.revisions import RETRACT

Bools = npt.NDArray[np.bool_]
NOTHING: Int64s = np.empty(0, np.int64)
NEITHER: Bools = np.empty(0, bool)


class TakenBack(NamedTuple):
    """Events that no longer count: their numbers, when they happened, where they lie, and the number of what says so."""

    number: Int64s = NOTHING
    ts: Int64s = NOTHING
    bucket: Int64s = NOTHING
    by: Int64s = NOTHING

    def those(self, which: Bools) -> TakenBack:
        return TakenBack(*(part[which] for part in self))


class Arrivals(NamedTuple):
    """What came of one input after some number."""

    number: Int64s = NOTHING
    ts: Int64s = NOTHING
    reached: Int64s = NOTHING  # the latest time so far
    bucket: Int64s = NOTHING
    judged: Int64s = NOTHING  # the earliest time that it changes: its own, or that of what it corrects
    on_time: Bools = NEITHER  # False: it corrects an earlier one, and says nothing about delays
    sets_clock: Bools = NEITHER
    taken_back: TakenBack = TakenBack()

    def after(self, number: int) -> Arrivals:
        """What came after a number."""
        back = self.taken_back
        return self._those(self.number > number)._replace(taken_back=back.those(back.by > number))

    def _those(self, which: Bools) -> Arrivals:
        mine: dict[str, Any] = {name: part[which] for name, part in self._asdict().items() if isinstance(part, np.ndarray)}
        return self._replace(**mine)

    @property
    def stands(self) -> Bools:
        """Which of them were not taken back again by another one here."""
        return ~np.isin(self.number, self.taken_back.number)


def of_log(log: EventLog, corrections: Corrections, clock: str | None, after: int, end: int) -> Arrivals:
    """The events (after, end]. Without a source for it, nobody sets the clock: who is ahead of all others does."""
    parts = []
    for bucket in sorted({file.bucket for file in log.files}):
        files = [asdict(file) for file in log.files if file.bucket == bucket and file.last_sn > after and file.first_sn <= end]
        names = ["ts", "source"] if clock else ["ts"]
        found = read_events(files, log.schema, names, NOTHING, after, end, in_sn_order=False)
        parts.append(found.append_column("bucket", pa.array(np.full(found.num_rows, bucket))))
    table = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries() if parts else None
    if table is None or not table.num_rows:
        return Arrivals()
    table = table.take(pa.array(np.argsort(np.asarray(table["sn"]), kind="stable")))
    sn, ts = np.asarray(table["sn"]), int64s(table["ts"])
    corrected = corrections.between(after, end)
    on_time, judged = np.ones(sn.size, bool), ts
    if corrected.sn.size:
        places = np.searchsorted(sn, corrected.sn)
        on_time[places], judged = False, ts.copy()
        judged[places] = np.minimum(ts[places], corrected.since_ts)
    sets_clock = np.zeros(sn.size, bool)
    if clock:
        sets_clock = np.asarray(pc.equal(table["source"].cast(pa.string()), clock)) & on_time
    taken_back = TakenBack(corrected.replaces, corrected.replaced_ts, corrected.replaced_bucket, corrected.sn)
    reached, bucket_of = int64s(table["stream_ts"]), np.asarray(table["bucket"])
    return Arrivals(sn, ts, reached, bucket_of, judged, on_time, sets_clock, taken_back)


def of_operator(output: Output, after: int, end: int) -> Arrivals:
    """The complex events (after, end]; a retraction repeats what it takes back."""
    files = [asdict(file) for file in output.files if file.last_sn > after and file.first_sn <= end]
    found = read_events(files, output.schema, ["revision", "of"], NOTHING, after, end, in_sn_order=True, number="ordinal")
    if not found.num_rows:
        return Arrivals()
    number, ts = np.asarray(found["ordinal"]), int64s(found["decided_ts"])
    back = np.asarray(pc.equal(found["revision"].cast(pa.string()), RETRACT))
    reached, zeros = np.maximum.accumulate(ts), np.zeros(number.size, np.int64)
    taken_back = TakenBack(int64s(found["of"].filter(pa.array(back))), ts[back], zeros[back], number[back])
    no = np.zeros(number.size, bool)
    return Arrivals(number, ts, reached, zeros, ts, ~no, no, taken_back)._those(~back)
