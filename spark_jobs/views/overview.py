"""A pipeline at a glance: how far its operators are behind the log, what they found, what verification says of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from spark_jobs.errors import RepriseError
from spark_jobs.lake.outputs import Committed, committed_of
from spark_jobs.lake.scan import LAST_SN, STREAM_TS, TRIMMED_SN
from spark_jobs.lake.tables import Lake
from spark_jobs.places import Place
from spark_jobs.verify.verdict import Verdict, worst
from spark_jobs.versions import Version, registry
from spark_jobs.views.attempts import attempts_in
from spark_jobs.views.handles import looking_at
from spark_jobs.views.records import records_of
from spark_jobs.views.timeline import attempt_shown
from spark_jobs.views.values import moment, shown, told


def overview(place: Place, now: int) -> dict[str, Any]:
    """One pipeline; a lake that is not there or cannot be read is a note that says what to do."""
    about = {"name": place.name, "schedule": place.schedule, "landing": shown(place.landing), "note": ""}
    try:
        return {**about, **_nothing(), **_looked(place, now)}
    except (DeltaError, RepriseError, OSError, pa.ArrowException) as error:
        note = f"The lake cannot be read: {told(error, place.lake)}. Nothing was changed. 'reprise show history' says more."
        return {**about, **_nothing(), "note": note}


def _nothing() -> dict[str, Any]:
    return {"events": 0, "stream_ts": None, "trimmed": 0, "operators": [], "verdict": None, "quarantined": 0, "late": 0,
            "last_attempt": None}  # fmt: skip


def _looked(place: Place, now: int) -> dict[str, Any]:
    lake = Lake(place.lake)
    last_attempt = _last_attempt(lake, now)
    if not lake.has("event_log"):
        return {"note": not_ingested(place), "last_attempt": last_attempt}
    with looking_at(lake, "event_log") as log:
        last_sn, stream_ts, trimmed = (log.transaction_version(name) for name in (LAST_SN, STREAM_TS, TRIMMED_SN))
    verdicts = _verdicts(lake, place.name)
    operators = [
        {**operator, "verdict": verdicts.get(operator["operator"])} for operator in _operators(lake, last_sn or 0, stream_ts)
    ]
    return {
        "note": "" if operators else f"Nothing was detected yet. Run the DAG {place.name}.detect, or 'reprise detect'.",
        "events": last_sn or 0,
        "stream_ts": moment(stream_ts),
        "trimmed": trimmed or 0,
        "operators": operators,
        "verdict": _overall(operators),
        "quarantined": rows_in(lake, "quarantine"),
        "late": rows_in(lake, "late_events"),
        "last_attempt": last_attempt,
    }


def not_ingested(place: Place) -> str:
    return (
        f"Nothing was ingested yet. Put files into {shown(place.landing)}/date=YYYY-MM-DD/hour=HH/source=NAME and run the DAG "
        f"{place.name}.ingest."
    )


def current_versions(lake: Lake) -> list[Version]:
    """Which version of each operator counts; none in a lake where nothing was detected."""
    known = registry(lake).versions if lake.has("versions") else ()
    return sorted((version for version in known if version.current), key=lambda version: version.operator)


def rows_in(lake: Lake, table: str) -> int:
    """How many rows a table has, from its log."""
    if not lake.has(table):
        return 0
    with looking_at(lake, table) as handle:
        counts = pa.table(handle.get_add_actions(flatten=True))["num_records"].to_pylist()
    return sum(count or 0 for count in counts)


def _operators(lake: Lake, last_sn: int, stream_ts: int | None) -> list[dict[str, Any]]:
    """What each operator has read of the log. Its committed place is what it goes on from; what is not read yet is its lag."""
    if not lake.has("complex_events"):
        return []
    with looking_at(lake, "complex_events") as handle:
        places = [(version, committed_of(handle, version.operator, version.number)) for version in current_versions(lake)]
    return [_operator(version, committed, last_sn, stream_ts) for version, committed in places]


def _operator(version: Version, committed: Committed | None, last_sn: int, stream_ts: int | None) -> dict[str, Any]:
    at = committed.at if committed else None
    read = at.sn if at else version.after_sn
    batch = committed.batch if committed else 0
    return {
        "operator": version.operator,
        "version": version.number,
        "reads": sorted(version.inputs),
        "batch": batch,
        "savepoint": committed.savepoint.batch if committed and committed.savepoint else batch,
        "read": read,
        "lag_events": max(0, last_sn - read),
        "lag_seconds": None if stream_ts is None or at is None else max(0, stream_ts - at.ts) / 1_000_000,
        "matches": committed.seed.ordinal - 1 if committed else 0,
    }


def _verdicts(lake: Lake, pipeline: str) -> dict[str, dict[str, Any]]:
    """The newest verdict on each operator."""
    columns = ["at", "pipeline", "operator", "version", "verdict", "events", "matches"]
    rows = lake.read("verdicts", columns).to_pylist() if lake.has("verdicts") else []
    newest = {row["operator"]: row for row in sorted(rows, key=lambda row: row["at"]) if row["pipeline"] == pipeline}
    return {
        name: {"verdict": row["verdict"], "at": moment(row["at"]), "events": row["events"], "version": row["version"]}
        for name, row in newest.items()
    }


def _overall(operators: list[dict[str, Any]]) -> str | None:
    """The worst of all operators; one that was never verified makes it unknown."""
    if not any(operator["verdict"] for operator in operators):
        return None
    found = [operator["verdict"]["verdict"] if operator["verdict"] else Verdict.UNKNOWN for operator in operators]
    return worst(map(Verdict, found)).value


def _last_attempt(lake: Lake, now: int) -> dict[str, Any] | None:
    attempts = attempts_in(records_of(lake), now)
    return attempt_shown(attempts[-1]) if attempts else None
