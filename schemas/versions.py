"""`versions`: every definition an operator ever had. A changed pattern, window, key or input is a new version.

An operator's current version is the one that its row of kind `current` with the highest step names; its output is what
readers should take.
"""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("step", pa.int64()),  # rises with every change
    required("at", TIMESTAMP),
    required("operator", pa.string()),
    required("version", pa.int32()),
    required("kind", pa.string()),  # added, current, retired
    required("fingerprint", pa.string()),  # of the definition, and of those of its inputs
    required("after_sn", pa.int64()),  # it knows the log after this SN
    required("definition", pa.string()),  # JSON, as in the pipeline file
    required("inputs", pa.string()),  # JSON: version of everything it reads; the log has version 0
])
