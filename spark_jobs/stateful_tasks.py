"""What Spark tasks do for operators with shared state: run one chunk of events against a state, and say what that did.

As with other tasks: small payloads, their own I/O, files that no table names, and no harm if one is run twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.cep.arrays import Int64s
from spark_jobs.cep.columns import decoded, int64s, one_chunk, writable
from spark_jobs.cep.laps import Laps
from spark_jobs.cep.matcher import found_steps, key_codes, match_table, step_mask
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.sequencer import in_order, marks
from spark_jobs.errors import RepriseError
from spark_jobs.lake.scan import read_events
from spark_jobs.pipeline import BalanceSpec, Pipeline
from spark_jobs.tasks import pipeline_of, reach_phase, read_arrow, write_arrow
from spark_jobs.transactions.operators import LARGEST_AMOUNT, Chunk, chunk_of
from spark_jobs.transactions.state import NO_CELLS, State

NOTHING: Int64s = np.empty(0, np.int64)


def transact_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Run a chunk, or only read it. What it found goes to a scratch file as matches do, what it learned and adds to another."""
    pipeline = pipeline_of(payload["pipeline"])
    operator = pipeline.built[payload["operator"]]
    laps = Laps()
    events = _events(payload, pipeline, operator)
    reach_phase(payload, "match.read")
    laps("scan")
    if payload["state"] is None:
        return {"effect": None}
    rows, chunk = chunk_in(pipeline, operator, events)
    laps("predicate")
    state = State.of(read_arrow(payload["state"]))
    effect = pipeline.stateful[operator.name].run(chunk, state)
    laps("kernel")
    matches = in_order(single_events(operator, events, rows[effect.rows]))
    laps("sequence")
    write_arrow(payload["out"], matches)
    write_arrow(f"{payload['out']}-effect", effect.table())
    reach_phase(payload, "match.written")
    laps("write")
    return {
        "out": payload["out"],
        "effect": f"{payload['out']}-effect",
        "matches": matches.num_rows,
        "marks": marks(matches),
        "read": events.num_rows,
        "seconds": laps.seconds,
    }


def _events(payload: dict[str, Any], pipeline: Pipeline, operator: Operator) -> pa.Table:
    """What an earlier run of the chunk has kept, or what the log says; kept in turn for who may have to run it again."""
    if payload.get("kept"):
        return read_arrow(payload["kept"])
    columns, schema = operator.columns, pipeline.source.schema
    events = read_events(payload["files"], schema, columns, NOTHING, payload["after"], payload["end"], in_sn_order=True)
    events = events.unify_dictionaries().combine_chunks()
    if payload.get("keep"):
        write_arrow(payload["keep"], events)
    return events


def chunk_in(pipeline: Pipeline, operator: Operator, events: pa.Table) -> tuple[Int64s, Chunk]:
    """The rows of the events that count, and what they are to the state."""
    rows = np.flatnonzero(step_mask(operator, events))
    codes, _ = key_codes(operator, events, rows)
    column = one_chunk(events[operator.partition_by])
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return rows, chunk_of(codes, coded.dictionary, _amounts(pipeline, operator, events, rows))


def single_events(operator: Operator, events: pa.Table, rows: Int64s) -> pa.Table:
    """Events that the state has decided on, as matches of one event each."""
    found = found_steps(operator, events, rows[:, np.newaxis], np.ones(rows.size, np.int64))
    return match_table(operator, events, None, found)


def _amounts(pipeline: Pipeline, operator: Operator, events: pa.Table, rows: Int64s) -> Int64s:
    """What each event moves, in the smallest unit."""
    spec = pipeline.operators[operator.name]
    if not isinstance(spec, BalanceSpec):
        return NO_CELLS
    column = decoded(events[spec.amount]).take(pa.array(rows))
    amounts = units(column) if pa.types.is_decimal(column.type) else int64s(column)
    wrong = np.flatnonzero(
        (amounts > LARGEST_AMOUNT) | (amounts < -LARGEST_AMOUNT)
    )  # the smallest number has no absolute value
    if wrong.size:
        raise RepriseError(
            f"event {int64s(events['sn'])[rows[wrong[0]]]:,} moves {column[int(wrong[0])].as_py()}, which is more than "
            f"{LARGEST_AMOUNT:,} of the smallest unit: operator '{operator.name}' cannot add it up exactly. Nothing of this "
            "batch was published. Leave such events out with 'where', or declare the amount with fewer decimal places."
        )
    return np.asarray(writable(amounts))


def units(column: Any) -> Int64s:
    """Decimals of up to 18 digits as whole numbers of their smallest unit: the lower half of their 128 bits."""
    halves = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    return halves[::2].copy()
