"""The reference run over a lake, link by link: each link is a stretch of the log, what was found in it, and what was kept.

    _reference/<operator>-<what it means>/<after SN>-<end SN>/   link.json, part-*.parquet, kept-*

A first link begins where the operator version does. A later one goes on from what the reference itself kept at the end of
another, with copies of the events that it still needs: so it depends neither on savepoints, which could then vouch for
themselves, nor on a log that has been trimmed since. Detection neither reads nor writes any of it. The folder's name says what
it covers, so a link is made once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.cep.arrays import NOT_HELD, Int64s
from spark_jobs.cep.columns import int64s
from spark_jobs.cep.matcher import Known
from spark_jobs.cep.operator import Operator
from spark_jobs.cep.order import Instant, Instants, merge
from spark_jobs.cep.sequencer import LOG_SN, Seed, Slice, in_order, marks, plain, slices, stamp
from spark_jobs.errors import RepriseError
from spark_jobs.lake.scan import EventLog, read_events
from spark_jobs.lake.seal import broken
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.runner import Runner
from spark_jobs.streams import Part, as_events, merged, stored_columns_of
from spark_jobs.tasks import pipeline_of, read_arrow, write_arrow
from spark_jobs.verify.comparison import Piece
from spark_jobs.verify.reference import NOTHING_KEPT, Kept, reference_run
from spark_jobs.verify.stateful import stateful_run

# Events that a task of the automaton walks at a time, and complex events that one numbers: some 200 MB each.
STRETCH_EVENTS = 1_000_000
PART_MATCHES = 1_000_000
NOTHING: Int64s = np.empty(0, np.int64)


@dataclass(frozen=True)
class Link:
    """What the reference found between two points of the log, and where it stands after it."""

    folder: Path
    operator: str
    after: Instant
    at: Instant
    read: int  # events of all inputs so far, which is the number of the last one in the operator's stream
    ends: tuple[int, ...]  # and of each input
    first: Seed  # the numbers it begins with
    seed: Seed  # those that come next
    parts: tuple[Piece, ...]
    shards: int  # what was kept lies in so many files

    @property
    def rows(self) -> int:
        return self.seed.ordinal - self.first.ordinal

    def parts_after(self, ordinal: int) -> list[Piece]:
        """Those that reach beyond an ordinal."""
        ends = accumulate((part.rows for part in self.parts), initial=self.first.ordinal - 1)
        return [part for part, end in zip(self.parts, list(ends)[1:], strict=True) if end > ordinal]

    def kept(self, shard: int) -> str:
        return f"{self.folder}/kept-{shard}"

    def check(self) -> None:
        """Raises where a file is gone or was cut off."""
        for part in self.parts:
            pq.read_metadata(part.path)
        for shard in range(self.shards):
            Kept.load(self.kept(shard))

    def table(self) -> pa.Table:
        """All its complex events, for those who know that they are few."""
        found = pa.concat_tables(pq.read_table(part.path) for part in self.parts) if self.parts else pa.table({})
        return found.add_column(0, "operator", pa.repeat(self.operator, found.num_rows)) if self.parts else found

    def store(self, folder: Path) -> None:
        """Says where everything stands; written last."""
        said = {**vars(self), "parts": [[Path(part.path).name, part.rows] for part in self.parts]}
        del said["folder"]
        (folder / "link.json").write_text(json.dumps(said))

    @classmethod
    def load(cls, folder: Path) -> Link:
        said = json.loads((folder / "link.json").read_text())
        said["parts"] = tuple(Piece(str(folder / name), rows) for name, rows in said["parts"])
        for name, kind in (("after", Instant), ("at", Instant), ("first", Seed), ("seed", Seed)):
            said[name] = kind(*said[name])
        return cls(folder, **{**said, "ends": tuple(said["ends"])})


@dataclass(frozen=True)
class Chain:
    """The reference run of a pipeline over one version of the log.

    `starts` says after which SN operators begin that do not begin with the log.
    """

    pipeline: Pipeline
    lake: Lake
    log: EventLog
    runner: Runner
    starts: Mapping[str, int]

    def folder(self, name: str) -> Path:
        """Where the links of an operator are: its meaning, and where it and all that it reads begin."""
        begins = sorted((other, self.starts.get(other, 0)) for other in [name, *self._above(name)])
        meaning = hashlib.sha256(f"{self.pipeline.fingerprint(name)}{begins}".encode()).hexdigest()[:16]
        return self.lake.root / "_reference" / f"{name}-{meaning}"

    def ending(self, name: str, sn: int) -> Link | None:
        """A link that ends with an event of the log, and from which the reference can go on."""
        return next((link for link in self._links(name) if link.at.sn == sn), None)

    def whole(self, name: str, end_sn: int) -> Link:
        """From the operator's beginning."""
        start = self.starts.get(name, 0)
        found = next((link for link in self._links(name) if (link.after.sn, link.at.sn) == (start, end_sn)), None)
        return found or self._made(name, None, end_sn)

    def going_on(self, name: str, base_sn: int, end_sn: int) -> Link:
        """From where a link ended, or a link that has begun before and reaches as far."""
        there = [link for link in self._links(name) if link.after.sn <= base_sn and link.at.sn == end_sn]
        if there:
            return max(there, key=lambda link: link.after.sn)
        base = self.ending(name, base_sn)
        if base is None:
            raise RepriseError(
                f"what the reference run of '{name}' kept after event {base_sn:,} is gone from {self.folder(name)}"
            )
        return self._made(name, base, end_sn)

    def forget(self, before_sn: int) -> None:
        """Remove the links that end before an event: nobody will go on from there any more."""
        for name in self.pipeline.order:
            for link in self._links(name):
                if link.at.sn < before_sn:
                    shutil.rmtree(link.folder, ignore_errors=True)

    def _above(self, name: str) -> set[str]:
        inputs = [i for i in self.pipeline.operators[name].inputs if i != EVENT_LOG]
        return set(inputs).union(*(self._above(i) for i in inputs))

    def _links(self, name: str) -> Iterator[Link]:
        """Those that are whole: what was cut off is made anew."""
        for folder in sorted(self.folder(name).glob("*-*")):
            try:
                link = Link.load(folder)
                link.check()
            except (OSError, ValueError, KeyError, TypeError, BadZipFile, pa.ArrowException):
                continue
            yield link

    def _made(self, name: str, base: Link | None, end_sn: int) -> Link:
        since = base.at if base else self._instant(self.starts.get(name, 0))
        if self.log.trimmed_sn > since.sn:
            raise RepriseError(
                f"the log was trimmed up to event {self.log.trimmed_sn:,}: there is no reference run from event "
                f"{since.sn + 1:,} on. Verify before trimming"
            )
        target = self.folder(name) / f"{since.sn}-{end_sn}"
        made, scratch = Path(f"{target}.{os.getpid()}.partial"), self.lake.scratch(f"reference-{name}")
        made.mkdir(parents=True, exist_ok=True)
        try:
            walks = self.runner.run(walk_task, self._walks(name, base, since, end_sn, scratch, made))
            self._check_all_read(name, since, end_sn, walks)
            link = self._numbered(name, base, since, end_sn, walks, made)
            link.store(made)
            shutil.rmtree(target, ignore_errors=True)  # what was there was not whole
            with suppress(OSError):  # somebody else has made the same meanwhile
                made.rename(target)
            return Link.load(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            shutil.rmtree(scratch, ignore_errors=True)

    def _instant(self, sn: int) -> Instant:
        return Instant(self.log.stream_ts_at(sn), sn) if sn else Instant(NOT_HELD, 0)

    def _walks(
        self, name: str, base: Link | None, since: Instant, end_sn: int, scratch: Path, made: Path
    ) -> list[dict[str, Any]]:
        operator, inputs = self.pipeline.built[name], self.pipeline.operators[name].inputs
        shards = self.pipeline.source.buckets if _by_bucket(operator, inputs) and name not in self.pipeline.stateful else 1
        text = self.pipeline.model_dump_json(by_alias=True)
        return [
            {
                "pipeline": text,
                "operator": name,
                "since": since,
                "at": self._instant(end_sn),
                "read": base.read if base else None,
                "inputs": [self._input(i, base, k, since, end_sn, shard, shards) for k, i in enumerate(inputs)],
                "kept": base.kept(shard) if base else None,
                "keep": f"{made}/kept-{shard}",
                "stretch": STRETCH_EVENTS * shards,
                "rows": (end_sn - since.sn) // shards,
                "out": f"{scratch}/{shard}",
            }
            for shard in range(shards)
        ]

    def _input(
        self, name: str, base: Link | None, index: int, since: Instant, end_sn: int, shard: int, shards: int
    ) -> dict[str, Any]:
        end = base.ends[index] if base else None
        if name == EVENT_LOG:
            files = self.log.shard_files(shard, shards, "key" if shards > 1 else None, end_sn)
            return {"name": name, "files": [file for file in files if file["last_sn"] > since.sn], "end": end}
        link = self.going_on(name, since.sn, end_sn) if base else self.whole(name, end_sn)
        return {"name": name, "parts": [part.path for part in link.parts], "end": end}

    def _check_all_read(self, name: str, since: Instant, end_sn: int, walks: Sequence[dict[str, Any]]) -> None:
        """A reference that has missed an event proves nothing."""
        if EVENT_LOG not in self.pipeline.operators[name].inputs:
            return
        read = sum(walk["of_log"] for walk in walks)
        if read != end_sn - since.sn:
            raise RepriseError(
                f"the reference run of '{name}' needs the events from {since.sn + 1:,} to {end_sn:,}, but {read:,} are in the "
                "event log: a file is missing or damaged"
            )

    def _numbered(
        self, name: str, base: Link | None, since: Instant, end_sn: int, walks: Sequence[dict[str, Any]], made: Path
    ) -> Link:
        first = base.seed if base else Seed()
        found = [out for walk in walks for out in walk["outs"]]
        matches = sum(out["matches"] for out in found)
        cut = slices([out["marks"] for out in found], -(-matches // PART_MATCHES)) if matches else []
        shards = [out["path"] for out in found]
        payloads = [{"shards": shards, "low": part.low, "high": part.high, "rows": matches // len(cut)} for part in cut]
        counted = self.runner.run(count_task, payloads)
        seeds = [first]
        for count in counted:  # no producer lies in two slices
            seeds.append(Seed(seeds[-1].x + count["producers"], seeds[-1].ordinal + count["rows"]))
        parts = [Piece(f"{made}/part-{index:04}.parquet", count["rows"]) for index, count in enumerate(counted)]
        numbering = zip(payloads, seeds, parts, strict=False)
        self.runner.run(number_task, [{**payload, "seed": seed, "out": part.path} for payload, seed, part in numbering])
        seed = seeds[-1]
        read, ends = walks[0]["read"], tuple(walks[0]["ends"])
        return Link(made, name, since, self._instant(end_sn), read, ends, first, seed, tuple(parts), len(walks))


def _by_bucket(operator: Operator, inputs: Sequence[str]) -> bool:
    """May the keys be walked bucket by bucket? Where rows of other keys close windows, one has to see them all."""
    sees_others = operator.window.kind == "count" and not operator.plain
    return list(inputs) == [EVENT_LOG] and operator.partition_by == "key" and not sees_others


# What tasks do


def walk_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Walk one shard of an operator's stream; its matches go to scratch files, in their final order."""
    pipeline = pipeline_of(payload["pipeline"])
    operator, names = pipeline.built[payload["operator"]], [entry["name"] for entry in payload["inputs"]]
    _check_seals(payload["inputs"])
    kept = Kept.load(payload["kept"]) if payload["kept"] else NOTHING_KEPT
    outs: list[dict[str, Any]] = []
    of_log, ends = 0, [0]
    walk = _log_stretches if names == [EVENT_LOG] else _graph_stretch
    for known, events, ends, log_events in walk(payload, pipeline, operator):  # noqa: B007  # the last one's are reported
        if operator.name in pipeline.stateful:
            matches, kept = stateful_run(pipeline.operators[operator.name], operator, events, kept)
        else:
            matches, kept = reference_run(operator, events, known, kept, names)
        matches, path = in_order(matches), f"{payload['out']}-{len(outs)}"
        write_arrow(path, matches)
        outs.append({"path": path, "matches": matches.num_rows, "marks": marks(matches)})
        of_log += log_events
    kept.save(payload["keep"])
    return {"outs": [out for out in outs if out["matches"]], "read": sum(ends), "ends": ends, "of_log": of_log}


Stretch = tuple[Known, pa.Table, list[int], int]  # what is known, the events, how far each input was read, events of the log


def _check_seals(inputs: Sequence[dict[str, Any]]) -> None:
    for file in [file for entry in inputs for file in entry.get("files", [])]:
        wrong = broken(file["path"])
        if wrong:
            raise RepriseError(f"{file['path']}: {wrong}, so there is nothing to hold the output against")


def _log_stretches(payload: dict[str, Any], pipeline: Pipeline, operator: Operator) -> Iterator[Stretch]:
    """The log alone. The automaton takes it stretch by stretch; everything else sees the whole of it at once."""
    (entry,), since, at = payload["inputs"], Instant(*payload["since"]), Instant(*payload["at"])
    step = payload["stretch"] if operator.plain else max(1, at.sn - since.sn)
    watermark = since.ts
    for after in range(since.sn, max(at.sn, since.sn + 1), step):
        end = min(after + step, at.sn)
        events = read_events(entry["files"], pipeline.source.schema, operator.columns, NOTHING, after, end, in_sn_order=True)
        reached = at.ts if end == at.sn else int(int64s(events["stream_ts"])[-1]) if events.num_rows else watermark
        yield _known(operator, after, end, watermark, reached), events, [end], events.num_rows
        watermark = reached


def _graph_stretch(payload: dict[str, Any], pipeline: Pipeline, operator: Operator) -> Iterator[Stretch]:
    """What the reference found of other operators, and the log where it is among the inputs, merged into one stream."""
    since, at, inputs = Instant(*payload["since"]), Instant(*payload["at"]), payload["inputs"]
    tables = [_new_events(entry, pipeline, operator, since, at) for entry in inputs]
    instants = [Instants(int64s(table["stream_ts"]), int64s(table[LOG_SN])) for table in tables]
    if payload["read"] is None:  # it begins after an instant: what was decided up to there counts as read
        skipped = [0 if e["name"] == EVENT_LOG else i.upto(since) for e, i in zip(inputs, instants, strict=True)]
        before = [since.sn if e["name"] == EVENT_LOG else n for e, n in zip(inputs, skipped, strict=True)]
    else:
        skipped, before = [0] * len(inputs), [entry["end"] for entry in inputs]
    tables = [table.slice(n) for table, n in zip(tables, skipped, strict=True)]
    instants = [Instants(i.ts[n:], i.sn[n:]) for i, n in zip(instants, skipped, strict=True)]
    numbers, _ = merge(instants, sum(before) + 1)
    parts = [Part(e["name"], table, places) for e, table, places in zip(inputs, tables, numbers, strict=True)]
    ends = [n + table.num_rows for n, table in zip(before, tables, strict=True)]
    of_log = sum(table.num_rows for entry, table in zip(inputs, tables, strict=True) if entry["name"] == EVENT_LOG)
    yield _known(operator, sum(before), sum(ends), since.ts, at.ts), merged(parts), ends, of_log


def _new_events(entry: dict[str, Any], pipeline: Pipeline, operator: Operator, since: Instant, at: Instant) -> pa.Table:
    name = entry["name"]
    if name == EVENT_LOG:
        schema = pipeline.source.schema
        columns = stored_columns_of(name, schema, operator)
        found = read_events(entry["files"], schema, columns, NOTHING, since.sn, at.sn, in_sn_order=True)
        return as_events(name, found, operator)
    wanted = dict.fromkeys(["ordinal", "decided_ts", *stored_columns_of(name, pipeline.output_schema, operator)])
    parts = []
    for path in entry["parts"]:
        with pq.ParquetFile(path) as file:
            parts.append(file.read(columns=[column for column in wanted if column in file.schema_arrow.names]))
    if not parts:
        fields = [pipeline.output_schema.field(column) for column in wanted]
        return as_events(name, pa.schema(fields).empty_table(), operator)
    found = pa.concat_tables(parts)
    return as_events(name, found.filter(pc.field("ordinal") > (entry["end"] or 0)), operator)


def _known(operator: Operator, after: int, end: int, since: int, watermark: int) -> Known:
    first = operator.window.first_open(after, since) if after else operator.window.first_window()
    return Known(after, end, since, watermark, first)


def count_task(payload: dict[str, Any]) -> dict[str, Any]:
    """How many matches lie in one slice, and how many rows and deadlines have produced them."""
    parts = _slice(payload)
    at_ts, at_sn = (np.concatenate([int64s(part[name]) for part in parts]) for name in ("_at_ts", "_at_sn"))
    return {"rows": at_sn.size, "producers": _distinct(at_sn[at_sn > 0]) + _distinct(at_ts[at_sn == 0])}


def _distinct(numbers: Int64s) -> int:
    # Of millions, np.unique takes ten times as long.
    return int((np.diff(np.sort(numbers)) != 0).sum()) + 1 if numbers.size else 0


def number_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Number the matches of one slice, and write them."""
    stamped, seed = stamp(Seed(*payload["seed"]), 0, _slice(payload), Slice())
    stamped = stamped.cast(pa.schema([(field.name, plain(field.type)) for field in stamped.schema]))
    pq.write_table(stamped, payload["out"], row_group_size=1 << 18, use_dictionary=["key"])
    return {"seed": seed}


def _slice(payload: dict[str, Any]) -> list[pa.Table]:
    """Of each shard's matches, which are in order, those of the slice; files are mapped, so that no others are read."""
    parts = []
    for path in payload["shards"]:
        matches = read_arrow(path)
        instants = Instants(int64s(matches["_at_ts"]), int64s(matches["_at_sn"]))
        begin, end = (instants.upto(Instant(at[0], at[1] - 1)) if at else None for at in (payload["low"], payload["high"]))
        parts.append(matches[begin:end])
    return parts
