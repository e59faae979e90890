"""`validations`: every run of a suite, one row per expectation. The full results are files below `_expectations/`."""

from __future__ import annotations

import pyarrow as pa

from schemas.types import TIMESTAMP, required

SCHEMA = pa.schema([
    required("at", TIMESTAMP),
    required("run", pa.string()),  # names the files of the run: results/<suite>/<run>.json, docs/validations/<suite>/<run>.html
    required("suite", pa.string()),
    required("subject", pa.string()),  # what was judged: 'ingest 3', an operator, a pipeline
    required("expectation", pa.string()),
    required("met", pa.bool_()),
    required("detail", pa.string()),
])
