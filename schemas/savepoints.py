"""`savepoints`: one row per operator version, batch, attempt, shard and input. A row counts only if a commit of
`complex_events` names its (operator, version, batch, attempt)."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import required

SCHEMA = pa.schema([
    required("operator", pa.string()),
    required("version", pa.int32()),
    required("batch", pa.int64()),
    required("attempt", pa.int64()),
    required("shard", pa.int32()),
    required("shards", pa.int32()),  # how many there are: with one row missing, a savepoint is damaged
    required("input", pa.string()),  # event_log, or the operator it reads; numbers below are that input's own
    required("place", pa.int32()),  # of this input among the operator's, from 0
    required("inputs", pa.int32()),
    required("seed_x", pa.int64()),
    required("seed_y", pa.int64()),
    required("seed_ordinal", pa.int64()),
    required("trim_sn", pa.int64()),
    required("skip", pa.binary()),  # v_skip: a format byte, then a bitmap or ranges (recovery/sets.py)
    required("context", pa.binary()),  # in the same format: of what is left, the events needed only as rows before others
    required("places", pa.binary()),  # with several inputs: the numbers of what is left in the merged stream
    required("floors", pa.binary()),  # from where on open windows go on
    required("start_sn", pa.int64()),  # the batch read the events (start_sn, end_sn] of this input
    required("end_sn", pa.int64()),
    required("read", pa.int64()),  # events of all inputs so far
    required("log_sn", pa.int64()),  # how far the log was known: the SN, and the stream time in microseconds
    required("watermark", pa.int64()),
    required("bytes", pa.int64()),
    required("checksum", pa.int64()),  # of all other columns
    # Of operators over events in order of time: clock, slack and speculation (ordering/order.py), and the states of the shard
    # that a late event can go back to (ordering/packed.py).
    pa.field("ordering", pa.string()),
    pa.field("states", pa.binary()),
    # With the strategy `checkpoint`: the file that holds the events this shard needs again (recovery/checkpoint.py).
    pa.field("checkpoint", pa.string()),
])
