"""What Spark tasks of detection do: a small JSON payload in, their own I/O, a small JSON result out.

A task knows nothing of attempts or commits: it reads committed files, writes files that no table names, and may be run twice.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import complex_events
from spark_jobs.cep.arrays import FOREVER, Floors, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.laps import Laps
from spark_jobs.cep.matcher import Boundaries, Known, Replay, match_shard
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import Seed, Slice, in_order, marks, plain, stamp
from spark_jobs.console import say
from spark_jobs.errors import TrimmedEventNeeded
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.outputs import output_name
from spark_jobs.lake.scan import of_shard, read_ahead, read_events
from spark_jobs.lake.seal import seal
from spark_jobs.ordering.revisions import as_asserted
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.recovery.checkpoint import joined, keep, needed, restored
from spark_jobs.recovery.savepoint import Origin, ShardSavepoint, shard_savepoint
from spark_jobs.recovery.sets import read_columns, read_numbers, stored_numbers
from spark_jobs.streams import INPUT, NUMBER, Part, as_events, merged, stored_columns_of, traced


def match_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Match one shard of one batch. Its matches go to a scratch file, in their final order; the driver gets facts only."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    known = Known(*payload["known"])
    laps = Laps()
    held = restored(payload["checkpoints"])
    events = _events(payload, pipeline, operator, known, held.events)
    reach_phase(payload, "match.read")
    laps("scan")
    closes = read_arrow(payload["closes"]) if payload["closes"] else None
    boundaries = Boundaries(payload["closes_from"], np.asarray(closes["ts"])) if closes else None
    floors = Floors(*read_columns(base64.b64decode(payload["floors"])))
    replay = Replay(unpacked(payload["context"]), floors, payload["skip"])
    found = match_shard(operator, events, known, replay=replay, boundaries=boundaries, lap=laps)
    laps("kernel")
    matches = in_order(traced(found.matches, events, closes, [entry["name"] for entry in payload["inputs"]]))
    laps("sequence")
    write_arrow(payload["out"], matches)
    reach_phase(payload, "match.written")
    origins = _origins(events, payload["inputs"])
    kept = shard_savepoint(payload["shard"], payload["shards"], found, known.end_sn, skip=payload["skip"], origins=origins)
    laps("write")
    checkpoint, stored = _checkpoint(payload, events, kept, known.end_sn) if payload["keep"] else ("", 0)
    laps("keep")
    for entry in payload["inputs"]:
        if "ahead" in entry:
            read_ahead(entry["ahead"]["files"], operator.columns, entry["end"], entry["ahead"]["end"])
    return {
        "out": payload["out"],
        "shard": payload["shard"],
        "shards": payload["shards"],
        "matches": matches.num_rows,
        "marks": marks(matches),
        "kept": [[k.trim_sn, *(base64.b64encode(part).decode() for part in (k.skip, k.context, k.places))] for k in kept.kept],
        "floors": base64.b64encode(kept.floors).decode(),
        "checkpoint": checkpoint,
        "kept_bytes": stored,
        "lost": held.lost,
        "replayed": int((int64s(events["sn"]) <= known.after_sn).sum()),
        "restored": 0 if held.events is None else needed(held.events, int64s(events["sn"])).num_rows,
        "read": events.num_rows,
        "seconds": laps.seconds,
    }


def reach_phase(payload: dict[str, Any], name: str) -> None:
    """A moment inside a task, where a drill has armed a fault for one."""
    if payload["faults"]:
        with Attempt.joined(payload["faults"], say) as attempt:
            attempt.phase(name, payload["batch"], payload["operator"], shard=payload["shard"])


# What a shard reads


def _events(payload: dict[str, Any], pipeline: Pipeline, operator: Operator, known: Known, held: pa.Table | None) -> pa.Table:
    """The residual and the new events of a shard, of its keys or its windows; `sn` is the number in the operator's stream.

    What is held, or was kept by somebody, is not read again.
    """
    inputs = payload["inputs"]
    if [entry["name"] for entry in inputs] == [EVENT_LOG]:
        events = _of_the_log(payload, pipeline, operator, known, held)
    else:
        events = _of_a_graph(inputs, pipeline, operator, held)
    if payload["filter_keys"]:
        events = of_shard(events, str(operator.partition_by), payload["shard"], payload["shards"])
    return events


def _of_the_log(
    payload: dict[str, Any], pipeline: Pipeline, operator: Operator, known: Known, held: pa.Table | None
) -> pa.Table:
    (entry,) = payload["inputs"]
    residual, after_sn, end_sn = unpacked(entry["residual"]), known.after_sn, known.end_sn
    grouped = known.last_window != FOREVER
    low, high = operator.window.reach(known.first_window, known.last_window) if grouped else (0, 0)
    if grouped and operator.window.kind == "count":
        # Positions are SN - 1; PREV looks at rows before the first window.
        first_sn = low + 1 - operator.back
        residual = residual[(residual >= first_sn) & (residual <= high)]
        after_sn, end_sn = max(after_sn, first_sn - 1), min(end_sn, high)
    in_sn_order = operator.partition_by != "key"
    if held is not None:
        held = needed(held, residual)
        residual = np.setdiff1d(residual, np.asarray(held["sn"]), assume_unique=True)
    events = read_events(
        entry["files"], pipeline.source.schema, operator.columns, residual, after_sn, end_sn, in_sn_order=in_sn_order
    )
    events = joined(held, events, in_order=in_sn_order)
    if grouped and operator.window.kind == "time":
        begin, end = np.searchsorted(int64s(events["stream_ts"]), [low, high])
        begin = max(begin - operator.back, 0)
        events = events.slice(begin, end - begin)
    return events


def _of_a_graph(inputs: list[dict[str, Any]], pipeline: Pipeline, operator: Operator, held: pa.Table | None) -> pa.Table:
    parts = [_part(entry, pipeline, operator, _numbers_of(index, held)) for index, entry in enumerate(inputs)]
    return joined(held, merged(parts), in_order=True)


def _numbers_of(index: int, held: pa.Table | None) -> Int64s:
    """The numbers that the events held have in one of the inputs."""
    if held is None:
        return np.empty(0, np.int64)
    if INPUT not in held.column_names:
        return np.asarray(held["sn"])
    numbers: Int64s = np.asarray(held[NUMBER])[np.asarray(held[INPUT]) == index]
    return numbers


def _part(entry: dict[str, Any], pipeline: Pipeline, operator: Operator, held: Int64s) -> Part:
    upstream, residual, after, end = entry["name"], unpacked(entry["residual"]), entry["after"], entry["end"]
    is_log = upstream == EVENT_LOG
    schema = pipeline.source.schema if is_log else pipeline.output_schema
    columns, number = stored_columns_of(upstream, schema, operator), "sn" if is_log else "ordinal"
    again = np.setdiff1d(residual, held, assume_unique=True)
    found = read_events(entry["files"], schema, columns, again, after, end, in_sn_order=True, number=number)
    numbers = np.asarray(found[number])
    expected = again.size + end - after
    if numbers.size != expected:  # an event that is missing would change numbers without a word
        raise TrimmedEventNeeded(
            f"operator '{operator.name}' needs {expected:,} events of '{upstream}' ({again.size:,} to replay, and those "
            f"from {after + 1:,} to {end:,}), but {numbers.size:,} are there. Nothing was published. A file was removed."
        )
    places = numbers
    if entry["places"]:
        new = np.asarray(read_arrow(entry["places"])["place"])
        old = unpacked(entry["residual_places"])[np.searchsorted(residual, numbers[numbers <= after])]
        places = np.concatenate([old, new[numbers[numbers > after] - after - 1]])
    return Part(upstream, as_events(upstream, found, operator), places)


# What a shard reports


def _checkpoint(payload: dict[str, Any], events: pa.Table, kept: ShardSavepoint, end_sn: int) -> tuple[str, int]:
    """Keep what the shard needs again; the name of it, and the bytes on disk."""
    several = len(kept.kept) > 1
    numbers = [read_numbers(k.places) if several else k.needed(end_sn) for k in kept.kept]
    path = Path(keep(**payload["keep"], held=needed(events, np.concatenate(numbers))))
    return path.name, path.stat().st_size if payload["keep"]["write"] else 0


def _origins(events: pa.Table, inputs: list[dict[str, Any]]) -> list[Origin]:
    """Of a merged stream: where the events of each input lie in it."""
    if INPUT not in events.column_names:
        return []
    source, places, numbers = (np.asarray(events[name]) for name in (INPUT, "sn", NUMBER))
    origins = []
    for index, entry in enumerate(inputs):
        mine = np.flatnonzero(source == index)
        mine = mine[np.argsort(numbers[mine], kind="stable")]
        origins.append(Origin(entry["end"], numbers[mine], places[mine]))
    return origins


def stamp_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Number one slice of a batch and write its complex events as a Parquet file that no table names yet."""
    schema, laps = pipeline_of(payload["pipeline"]).output_schema, Laps()
    shards = [read_arrow(path) for path in payload["shards"]]
    part = Slice(*(tuple(bound) if bound else None for bound in (payload["low"], payload["high"])))
    stamped, seed = stamp(Seed(*payload["seed"]), payload["batch"], shards, part)
    if "final" in payload:
        stamped = as_asserted(stamped, payload["final"])
    count = stamped.num_rows
    name = output_name(seed.ordinal - count, seed.ordinal - 1, payload["batch"], payload["attempt"], payload["index"])
    laps("sequence")
    path = write_complex_events(f"{payload['folder']}/{name}", stamped, schema)
    laps("write")
    return {"rows": count, "seed": seed, "name": Path(path).name, "seconds": laps.seconds}


def write_complex_events(path: str, stamped: pa.Table, schema: pa.Schema) -> str:
    """In the columns of the table, but for those in folder names: an operator without one of the measures leaves it empty.

    The path of the sealed file.
    """
    count = stamped.num_rows
    names = set(stamped.column_names)
    schema = pa.schema([f for f in schema if f.name not in complex_events.PARTITION_BY])
    columns = [_written(stamped[f.name], f.type) if f.name in names else pa.nulls(count, f.type) for f in schema]
    fields = [pa.field(f.name, column.type, f.nullable) for f, column in zip(schema, columns, strict=True)]
    rising = ["x", "y", "ordinal", "ts", "decided_ts", "decided_sn", "batch"]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(columns, schema=pa.schema(fields)),
        path,
        compression={f.name: "none" if f.name in rising else "snappy" for f in schema},
        # Lists are named by their inner column; what is not named here is written as it is, without trying codes first.
        use_dictionary=["key", "revision", "symbols.list.element", "inputs.list.element"],
        column_encoding={**dict.fromkeys(rising, "DELTA_BINARY_PACKED"), "sns.list.element": "DELTA_BINARY_PACKED"},
        store_schema=False,  # in the file coded text is text
        write_page_checksum=True,
    )
    return seal(path)


def _written(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The column as it can be written: text, alone or in lists, may stay coded, everything else has its type."""
    return column if plain(column.type) == type_ else column.cast(type_)


def write_arrow(path: str, table: pa.Table) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        # In one piece, so that a reader that maps the file finds every column in one piece.
        writer.write_table(table.combine_chunks())


def read_arrow(path: str) -> pa.Table:
    """Mapped, not read: who needs a slice touches a slice."""
    return pa.ipc.open_file(pa.memory_map(path)).read_all()


def packed(sns: Int64s) -> str:
    return base64.b64encode(stored_numbers(sns)).decode()


def unpacked(text: str) -> Int64s:
    return read_numbers(base64.b64decode(text))


@lru_cache(maxsize=8)  # a worker meets the same pipeline batch after batch
def pipeline_of(text: str) -> Pipeline:
    return Pipeline.model_validate_json(text)
