"""Ingest: landing files become numbered events, each exactly once, or quarantine rows.

Files are recognised by content, events by (source, source_seq); so a partition delivered twice changes
nothing. SNs follow arrival: partition by partition, within one by arrival time, then source, then sequence. The
ingest happens if and only if its commit stands in the log of `event_log`.
"""

from __future__ import annotations

import base64
import datetime as dt
import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyroaring import BitMap64

from schemas import event_log, landing, quarantine
from spark_jobs.corrections import corrections_of, corrections_table, listed
from spark_jobs.errors import FencedAttempt, IngestRefused, RepriseError
from spark_jobs.lake.commit import add_file, claim
from spark_jobs.lake.history import Attempt, fold
from spark_jobs.lake.scan import LAST_SN, ORDERED_SN, STREAM_TS, EventLog, file_name, open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.landing import FORMATS, LandingFile, find_files, missing_hours
from spark_jobs.pipeline import Pipeline
from spark_jobs.runner import Runner
from spark_jobs.staging import bucket_task, digest_task, restage_task, stage_task
from spark_jobs.verify.expectations import SUITES, Suite, docs_index, what_failed

Refused = tuple[str, str, str]  # file, reason, digest
# Enough to see that something is missing; a source that sleeps at night has one every day.
MAX_GAPS = 10
# The names under which event_log's commits keep how the log is cut.
BUCKETS = "ingest#buckets"
NUMBERED = "ingest#numbered"


@dataclass
class Ingested:
    """What one ingest did."""

    ingest: int
    files: int = 0
    known_files: int = 0
    rows: int = 0
    accepted: int = 0
    duplicates: int = 0
    quarantined: int = 0
    corrected: int = 0  # of those accepted: they correct earlier ones
    unreadable_files: int = 0
    last_sn: int = 0


@dataclass
class Taken:
    """What the log already has: file contents, the sequence numbers of every source, the time it has reached."""

    stream_ts: int

    digests: set[tuple[str, str, str]] = field(default_factory=set)  # partition, ending, digest
    paths: dict[str, str] = field(default_factory=dict)  # file -> digest
    sequences: dict[str, BitMap64] = field(default_factory=lambda: defaultdict(BitMap64))
    last_sequence: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def ingest(pipeline: Pipeline, landing_folder: Path, lake: Lake, runner: Runner, attempt: Attempt) -> Ingested:
    """Take in what is new below `landing_folder`."""
    landing_folder, root = landing_folder.resolve(), lake.root
    if root == landing_folder or root in landing_folder.parents or landing_folder in root.parents:
        raise RepriseError(
            f"the lake {root} and the landing folder {landing_folder} must not lie in one another: "
            "the lake's own files would be ingested. Nothing was ingested."
        )
    scratch = lake.scratch(f"ingest-{attempt.number}")
    work = _Ingest(pipeline, landing_folder, lake, runner, attempt, scratch)
    try:
        return work.run()
    except FencedAttempt as error:
        attempt.record("fence", "event_log", reason=str(error))
        raise
    finally:
        work.suite.close()
        shutil.rmtree(scratch, ignore_errors=True)
        fold(lake)


class _Ingest:
    def __init__(
        self, pipeline: Pipeline, landing_folder: Path, lake: Lake, runner: Runner, attempt: Attempt, scratch: Path
    ) -> None:
        self.pipeline = pipeline
        self.source = pipeline.source
        self.landing = landing_folder
        self.lake = lake
        self.runner = runner
        self.attempt = attempt
        self.scratch = scratch
        self.text = pipeline.model_dump_json(by_alias=True)
        own = self.source.expectations
        self.suite = Suite(Path(own) if own else SUITES / "incoming.yaml")

    def run(self) -> Ingested:
        # Where the log ends and which ingest is next must come from one version of the table: another ingest may
        # commit at any moment, and its numbers must not be given twice.
        log = open_log(self.lake, self.source.schema)
        place = claim(log.handle, "ingest", send=self.attempt.send)
        self._check_layout(log)
        number = place.step + 1
        taken = self._taken(log.handle)
        done = Ingested(number, last_sn=log.last_sn)
        files, refused = self._new_files(taken, done)
        groups = self._stage(files)
        self.attempt.phase("ingest.staged", number)
        self._drop_taken(groups, taken, log)
        self._account(groups, done)
        self._tell_gaps(taken, files, number)
        self._quarantine(pa.concat_tables([_whole_files(refused), self._rejected(groups)]), number, done)
        self._check(groups, number)
        self.attempt.phase("ingest.checked", number)
        if not files:
            return done
        added = self._write(groups, log, taken, number)
        self.attempt.phase("ingest.written", number)
        self.lake.append("landing_files", self._manifest(groups, refused, number))
        self._list_corrections(groups, log, number, done)
        self.attempt.phase("ingest.listed", number)
        also = {
            listed(number): self.attempt.number,
            STREAM_TS: _stream_ts(groups, taken.stream_ts),
            LAST_SN: log.last_sn + done.accepted,
            ORDERED_SN: _ordered_sn(groups, log, taken.stream_ts),
            BUCKETS: self.source.buckets,
            NUMBERED: int(self.source.columns.source_seq is not None),
        }
        place.publish(added, self.source.schema, self.attempt.number, event_log.PARTITION_BY, also)
        self.attempt.phase("ingest.committed", number)
        done.last_sn = log.last_sn + done.accepted
        self.attempt.record(
            "commit",
            "event_log",
            number,
            events=done.accepted,
            files=done.files,
            duplicates=done.duplicates,
            known_files=done.known_files,
            corrected=done.corrected,
        )
        return done

    def _check_layout(self, log: EventLog) -> None:
        known = log.handle.transaction_version(BUCKETS)
        if known is not None and known != self.source.buckets:
            raise RepriseError(
                f"the event log has {known} buckets, the pipeline says {self.source.buckets}. With both, a key would live in "
                f"two of them and lose matches. Nothing was ingested. Write 'buckets: {known}', or ingest into a new lake."
            )
        numbered = log.handle.transaction_version(NUMBERED)
        if numbered is not None and bool(numbered) != (self.source.columns.source_seq is not None):
            raise RepriseError(
                f"the event log was ingested {'with' if numbered else 'without'} a sequence column, the pipeline now works the "
                "other way, so known events could not be recognised. Nothing was ingested. Keep columns.source_seq as it "
                "was, or ingest into a new lake."
            )

    def _taken(self, handle: DeltaTable) -> Taken:
        """Only files whose ingest was committed count; the rows of a killed one are dead letters."""
        taken = Taken(stream_ts=handle.transaction_version(STREAM_TS) or 0)
        complete: set[int] = set()
        for row in self.lake.read("landing_files").to_pylist():
            if handle.transaction_version(listed(row["ingest"])) != row["attempt"]:
                continue
            complete.add(row["ingest"])
            taken.digests.add(_place_of(row["file"], row["digest"]))
            if row["accepted"]:  # a file of which nothing was taken may come again, repaired
                taken.paths[row["file"]] = row["digest"]
            taken.sequences[row["source"]] |= BitMap64.deserialize(row["sequences"])
            taken.last_sequence[row["source"]] = max(taken.last_sequence[row["source"]], row["last_seq"])
        missing = set(range(1, (handle.transaction_version("ingest") or 0) + 1)) - complete
        if missing:
            raise RepriseError(
                f"the table 'landing_files' has no rows of ingest {min(missing)}, so events that are in the log could be taken "
                "in again. Nothing was ingested. Restore the table, or ingest into a new lake."
            )
        return taken

    def _new_files(self, taken: Taken, done: Ingested) -> tuple[list[tuple[LandingFile, str]], list[Refused]]:
        """Files that are not in the log yet, with their fingerprints, and those refused as a whole."""
        known, unknown = find_files(self.landing)
        digests = self._digests([*known, *unknown])
        seen = set(taken.digests)
        new: list[tuple[LandingFile, str]] = []
        refused: list[Refused] = []
        for file in [*known, *unknown]:
            print_ = digests[file.path]
            place = _place_of(file.file, print_)
            if place in seen:
                done.known_files += 1
                continue
            seen.add(place)
            if Path(file.path).suffix not in FORMATS:
                refused.append((file.file, f"format not known by its ending; known are {', '.join(FORMATS)}", print_))
            elif not self.source.columns.source_seq and taken.paths.get(file.file, print_) != print_:
                reason = (
                    "the file was ingested before with other content; without a sequence column its rows cannot be told apart"
                )
                refused.append((file.file, reason, print_))
            else:
                new.append((file, print_))
        done.files = len(new) + len(refused)
        done.unreadable_files = len(refused)
        return new, refused

    def _digests(self, files: list[LandingFile]) -> dict[str, str]:
        paths = [file.path for file in files]
        chunks = [paths[i : i + 200] for i in range(0, len(paths), 200)]
        answers = self.runner.run(digest_task, [{"paths": chunk} for chunk in chunks])
        return dict(zip(paths, (d for answer in answers for d in answer["digests"]), strict=True))

    def _stage(self, files: list[tuple[LandingFile, str]]) -> list[dict[str, Any]]:
        by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for file, print_ in files:
            by_group[file.group].append({"path": file.path, "file": file.file, "digest": print_})
        payloads = [
            {"pipeline": self.text, "files": members, "out": str(self.scratch / f"group-{index:05}")}
            for index, members in enumerate(by_group.values())
        ]
        groups = self.runner.run(stage_task, payloads)
        for group, (name, members) in zip(groups, by_group.items(), strict=True):
            group["partition"] = name
            for entry, member in zip(group["files"], members, strict=True):
                entry.update(digest=member["digest"], duplicates=0)
        return groups

    def _drop_taken(self, groups: list[dict[str, Any]], taken: Taken, log: EventLog) -> None:
        """Events whose number is taken are taken out; only groups that have some are touched again."""
        if not self.source.columns.source_seq:
            return
        seen: dict[str, BitMap64] = defaultdict(BitMap64, {s: BitMap64(b) for s, b in taken.sequences.items()})
        earlier: list[str] = []
        for group in groups:
            overlaps: list[tuple[int, str, str]] = []  # file, source, numbers
            for index, numbers in enumerate(group["sequences"]):
                for source, packed in numbers.items():
                    mine = _unpacked(packed)
                    again = mine & seen[source]
                    seen[source] |= mine
                    if again:
                        overlaps.append((index, source, base64.b64encode(again.serialize()).decode()))
            if overlaps or group["repeats"]:
                payload = {
                    "pipeline": self.text,
                    "out": group["out"],
                    "taken": overlaps,
                    "names": [entry["file"] for entry in group["files"]],
                    "digests": [entry["digest"] for entry in group["files"]],
                    "log": [file.path for file in log.files],
                    "earlier": list(earlier),
                }
                answer = self.runner.run(restage_task, [payload])[0]
                for index, entry in enumerate(group["files"]):
                    entry["duplicates"] = answer["duplicates"].get(str(index), 0)
                    entry["quarantined"] += answer["conflicts"].get(str(index), 0)
                group.update(answer)
            earlier.append(f"{group['out']}.parquet")

    def _list_corrections(self, groups: list[dict[str, Any]], log: EventLog, number: int, done: Ingested) -> None:
        """Say which events correct which; like the list of files, it counts once the log is committed."""
        rows: list[dict[str, Any]] = []
        base = log.last_sn
        for group in groups:
            rows += [{**found, "sn": base + found.pop("place")} for found in group.get("corrections", ())]
            base += group["accepted"]
        done.corrected = len(rows)
        if rows:
            # What an event corrects may be a correction itself, and the first one may be gone from the log.
            known = corrections_of(self.lake, log.handle)
            since = dict(zip(known.sn.tolist(), known.since_ts.tolist(), strict=True))
            rows = [{**row, "since_ts": min(row["since_ts"], since.get(row["replaces"], row["since_ts"]))} for row in rows]
            self.lake.append("corrections", corrections_table(rows, number, self.attempt.number))
            self.attempt.say(f"corrected: {len(rows):,} events came again with other content; what they change is revised")

    def _tell_gaps(self, taken: Taken, files: list[tuple[LandingFile, str]], number: int) -> None:
        """Hours of a source that lie between others and did not come are said, for nobody else would notice."""
        known = [LandingFile(file, file) for file in taken.paths]
        for gap in missing_hours(known, [file for file, _ in files])[:MAX_GAPS]:
            self.attempt.record("gap", gap, number)
            self.attempt.say(f"missing: no landing file of {gap}, though the source has earlier and later ones")

    def _rejected(self, groups: list[dict[str, Any]]) -> pa.Table:
        tables = [
            pq.read_table(path)
            for group in groups
            for path in (Path(f"{group['out']}.rejected.parquet"), Path(f"{group['out']}.again.rejected.parquet"))
            if path.exists()
        ]
        return pa.concat_tables(tables) if tables else _rejected_schema().empty_table()

    def _account(self, groups: list[dict[str, Any]], done: Ingested) -> None:
        for group in groups:
            done.accepted += group["accepted"]
            for entry in group["files"]:
                done.rows += entry["rows"]
                done.duplicates += entry["duplicates"]
                done.unreadable_files += entry["unreadable"]
                done.quarantined += entry["quarantined"] - entry["unreadable"]

    def _quarantine(self, rejected: pa.Table, number: int, done: Ingested) -> None:
        """Keep what was rejected, each row and reason once per file content, then stop if it is too much."""
        identity = ("file", "digest", "row", "reason")
        seen = {tuple(row[n] for n in identity) for row in self.lake.read("quarantine").to_pylist()}
        rows = [row for row in rejected.to_pylist() if tuple(row[n] for n in identity) not in seen]
        now = dt.datetime.now(dt.UTC)
        table = pa.Table.from_pylist([{**row, "ingest": number, "at": now} for row in rows], quarantine.SCHEMA)
        self.lake.append("quarantine", table)
        shares = {
            f"{done.quarantined:,} of {done.rows:,} rows": done.quarantined / done.rows if done.rows else 0.0,
            f"{done.unreadable_files:,} of {done.files:,} files": done.unreadable_files / done.files if done.files else 0.0,
        }
        if done.quarantined or done.unreadable_files:
            self.attempt.say(f"quarantined {' and '.join(shares)}; see 'reprise show quarantine'")
        what, share = max(shares.items(), key=lambda item: item[1])
        if share > self.source.quarantine_limit:
            whole = what.endswith("files")  # the limit that was passed says which example explains it
            examples = rejected.to_pylist()
            first = next((row for row in examples if (row["row"] is None) == whole), examples[0])
            named = first["reason"].startswith("column '")  # mostly the pipeline is wrong then, not the delivery
            repair = "Correct source.columns and source.attributes, repair the files" if named else "Repair the files"
            place = first["file"] + (f", row {first['row']}" if first["row"] else "")
            raise IngestRefused(
                f"{what} are unusable, more than the limit of {self.source.quarantine_limit:.1%} in the pipeline. "
                f"Nothing was committed to event_log; the rows are in quarantine. First: {place}: {first['reason']}. "
                f"{repair}, or raise source.quarantine_limit, and ingest again."
            )

    def _check(self, groups: list[dict[str, Any]], number: int) -> None:
        """The suite of incoming partitions; a partition is a row."""
        if not groups:
            return
        facts = pa.Table.from_pylist([_facts(group) for group in groups])
        if failed := what_failed(self.suite.check(facts, lake=self.lake, subject=f"ingest {number}")):
            raise IngestRefused(
                f"incoming partitions: {failed}. Nothing was committed to event_log. All results: {docs_index(self.lake)}"
            )

    def _write(self, groups: list[dict[str, Any]], log: EventLog, taken: Taken, number: int) -> list[Any]:
        """One file per bucket over all groups, numbered from the end of the log."""
        base = log.last_sn
        stream_ts = taken.stream_ts
        per_bucket: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for group in groups:
            sequence_base = self._sequence_bases(group, taken)
            for bucket, row_group in group["buckets"].items():
                per_bucket[bucket].append({
                    "path": f"{group['out']}.parquet",
                    "row_group": row_group,
                    "base": base,
                    "stream_ts": stream_ts,
                    "sequence_base": sequence_base,
                })
            base += group["accepted"]
            stream_ts = max(stream_ts, group["ts_max"] or 0)
        folder = self.lake.path("event_log")
        payloads: list[dict[str, Any]] = [
            {
                "pipeline": self.text,
                "groups": members,
                "bucket": bucket,
                "path": f"{folder}/bucket={bucket}/{file_name(log.last_sn + 1, base, self.attempt.number)}",
            }
            for bucket, members in sorted(per_bucket.items(), key=lambda item: int(item[0]))
        ]
        return [
            add_file(
                folder,
                str(Path(result["path"]).relative_to(folder)),
                result["rows"],
                bucket=payload["bucket"],
            )
            for payload, result in zip(payloads, self.runner.run(bucket_task, payloads), strict=True)
        ]

    def _sequence_bases(self, group: dict[str, Any], taken: Taken) -> list[int]:
        """Where a log has no numbers of its own, a file's rows continue those of the files before it."""
        if self.source.columns.source_seq:
            return []
        bases = []
        for entry, numbers in zip(group["files"], group["sequences"], strict=True):
            base = max((taken.last_sequence[source] for source in numbers), default=0)
            entry["last_seq"] = base + entry["rows"]
            taken.last_sequence.update(dict.fromkeys(numbers, entry["last_seq"]))
            bases.append(base)
        return bases

    def _manifest(self, groups: list[dict[str, Any]], refused: list[Refused], number: int) -> pa.Table:
        rows = [self._manifest_row(number, file, digest) for file, _, digest in refused]
        for group in groups:
            for index, entry in enumerate(group["files"]):
                # One row per file and source; a file without an accepted event still counts as taken in.
                numbers = group["sequences"][index] or {"": _EMPTY}
                for source, packed in numbers.items():
                    own = _unpacked(packed) if self.source.columns.source_seq else BitMap64()
                    found = {
                        "source": source,
                        "rows": entry["rows"],
                        "accepted": group["per_file"][index],
                        "duplicates": entry["duplicates"],
                        "quarantined": entry["quarantined"],
                        "last_seq": entry.get("last_seq", max(own, default=0)),
                        "sequences": own.serialize(),
                    }
                    rows.append(self._manifest_row(number, entry["file"], entry["digest"]) | found)
        return pa.Table.from_pylist(rows, landing.SCHEMA)

    def _manifest_row(self, number: int, file: str, digest: str) -> dict[str, Any]:
        counts = dict.fromkeys(("rows", "accepted", "duplicates", "quarantined", "last_seq"), 0)
        name = {"file": file, "partition": str(Path(file).parent), "digest": digest, "source": ""}
        return {"ingest": number, "attempt": self.attempt.number, **name, **counts, "sequences": BitMap64().serialize()}


def _facts(group: dict[str, Any]) -> dict[str, Any]:
    rows = sum(entry["rows"] for entry in group["files"])
    quarantined = sum(entry["quarantined"] - entry["unreadable"] for entry in group["files"])
    duplicates = sum(entry["duplicates"] for entry in group["files"])
    accepted = group["accepted"]
    return {
        "partition": group["partition"],
        "files": len(group["files"]),
        "rows": rows,
        "accepted": accepted,
        "quarantined": quarantined,
        "duplicates": duplicates,
        "unaccounted": rows - accepted - quarantined - duplicates,
        "types": group["types"],
        "keys": group["keys"],
        "ts_min": group["ts_min"],
        "ts_max": group["ts_max"],
        "span_days": ((group["ts_max"] or 0) - (group["ts_min"] or 0)) / 86_400_000_000,
        "late_share": group["late"] / accepted if accepted else 0.0,
    }


def _place_of(file: str, digest: str) -> tuple[str, str, str]:
    """The same bytes count as the same file in one partition and one format."""
    return str(Path(file).parent), Path(file).suffix, digest


def _stream_ts(groups: list[dict[str, Any]], before: int) -> int:
    """Where stream time stands after these groups."""
    return max([before, *(group["ts_max"] or 0 for group in groups)])


def _ordered_sn(groups: list[dict[str, Any]], log: EventLog, stream_ts: int) -> int:
    """Up to where the log is in order of time, group by group: of one in which something came late or again, nothing counts."""
    if log.ordered_sn < log.last_sn:
        return log.ordered_sn
    ordered = log.last_sn
    for group in groups:
        if group["accepted"] and (group["late"] or group["ts_min"] < stream_ts or group.get("corrections")):
            return ordered
        ordered += group["accepted"]
        stream_ts = max(stream_ts, group["ts_max"] or 0)
    return ordered


def _whole_files(refused: list[Refused]) -> pa.Table:
    rows = [{"file": file, "row": None, "reason": reason, "content": None, "digest": d} for file, reason, d in refused]
    return pa.Table.from_pylist(rows, _rejected_schema())


def _rejected_schema() -> pa.Schema:
    return pa.schema([quarantine.SCHEMA.field(name) for name in ("file", "row", "reason", "content", "digest")])


def _unpacked(packed: str) -> BitMap64:
    return BitMap64.deserialize(base64.b64decode(packed))


_EMPTY = base64.b64encode(BitMap64().serialize()).decode()
