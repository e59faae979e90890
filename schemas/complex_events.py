"""`complex_events`: the output. Its Delta log is the one commit point of detection.

Which version of an operator counts, the table `versions` says.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from schemas.types import TIMESTAMP, required

FIXED = [
    required("operator", pa.string()),
    required("version", pa.int32()),
    required("x", pa.int64()),
    required("y", pa.int64()),
    required("ordinal", pa.int64()),
    pa.field("key", pa.string()),
    required("ts", TIMESTAMP),
    required("symbols", pa.list_(pa.string())),
    required("sns", pa.list_(pa.int64())),  # the events bound: SNs of the log, or ordinals of the operator they come from
    pa.field("inputs", pa.list_(pa.string())),  # of an operator with several inputs: which one each event comes from
    # When it was decided: the stream time, and the SN of the log's event that brought it about; 0 if only time had to pass.
    required("decided_ts", TIMESTAMP),
    required("decided_sn", pa.int64()),
    required("timed_out", pa.bool_()),  # a partial match that WITHIN ended
    required("batch", pa.int64()),
]
FIXED_NAMES = [field.name for field in FIXED]
PARTITION_BY = ["operator", "version"]


# Of operators over events in order of time: what late events have changed is taken back and said anew.
REVISIONS = [
    pa.field("revision", pa.string()),  # assert or retract
    pa.field("of", pa.int64()),  # of a retraction: the ordinal of what it takes back
    pa.field("speculative", pa.bool_()),  # when it was published, K-slack would still have waited
]


def schema(measures: Mapping[str, pa.DataType], *, revised: bool = False) -> pa.Schema:
    return pa.schema([*FIXED, *(REVISIONS if revised else ()), *(pa.field(name, type_) for name, type_ in measures.items())])
