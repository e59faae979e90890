"""`late_events`: events of the log that came later than what is published can be corrected, and so are not in the output."""

from __future__ import annotations

import pyarrow as pa

from schemas import event_log
from schemas.types import TIMESTAMP, required

# As in the log: `stream_ts` is the time it had reached when the event came.
COPIED = [field for field in event_log.FIXED if field.name not in event_log.PARTITION_BY]
SCHEMA = pa.schema([*COPIED, required("reason", pa.string()), required("at", TIMESTAMP)])
