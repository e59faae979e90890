"""History: what every attempt did, recorded as it happens.

An attempt appends lines to a journal file of its own, so a record costs microseconds and survives a SIGKILL;
`fold` moves complete lines into the Delta table `history`, each exactly once, whoever calls it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from schemas import history
from spark_jobs.faults import storage
from spark_jobs.faults.fault import Fault
from spark_jobs.faults.phases import PHASES, TASK_PHASES
from spark_jobs.faults.plan import FaultPlan
from spark_jobs.faults.strike import Scene, possible, strike
from spark_jobs.lake.journals import folder, journal, journals
from spark_jobs.lake.tables import Lake

_LOOK_AGAIN_SECONDS = 0.1


class Attempt:
    """One try of one job: its number, its journal, and the faults that may end it."""

    def __init__(
        self, lake: Lake, job: str, announce: Callable[[str], None] = lambda line: None, replica: int | None = None
    ) -> None:
        self.job, self.replica = job, replica
        self.lake = lake
        self._announce = announce
        self._file: int = -1
        self.number = 0
        folder(lake).mkdir(parents=True, exist_ok=True)
        while self._file < 0:
            self.number = _last_attempt(lake) + 1
            try:  # whoever creates the file owns the number
                self._file = os.open(journal(lake, self.number), os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY)
            except FileExistsError:
                continue
        which: dict[str, Any] = {} if replica is None else {"replica": replica}
        self.record("attempt", job, pid=os.getpid(), **which)
        self._expect_faults()

    @classmethod
    @contextmanager
    def joined(cls, token: Mapping[str, Any], announce: Callable[[str], None] = lambda line: None) -> Iterator[Self]:
        """The attempt of a driver, in one of its tasks."""
        attempt = cls.__new__(cls)
        attempt.job, attempt.number, attempt._announce = token["job"], token["attempt"], announce
        attempt.lake, attempt.replica = Lake(token["lake"]), token["replica"]
        attempt._file = os.open(journal(attempt.lake, attempt.number), os.O_APPEND | os.O_WRONLY)
        try:
            attempt._expect_faults()
            yield attempt
        finally:
            os.close(attempt._file)

    def for_tasks(self) -> dict[str, Any] | None:
        """What a task needs to join; nothing where no fault waits for one."""
        if not any(fault.phase in TASK_PHASES for fault in self._waiting):
            return None
        return {"lake": str(self.lake.root), "job": self.job, "attempt": self.number, "replica": self.replica}

    def phase(self, name: str, batch: int, operator: str | None = None, *, shard: int | None = None, **detail: Any) -> None:
        """A named moment of the protocol: recorded, and the place where an armed fault strikes."""
        if name not in PHASES:
            raise ValueError(f"'{name}' is not a phase")
        self.record("phase", name, batch, operator, **detail)
        for fault in self._waiting:
            if fault.meets(name, batch, operator, shard):
                self._strike(fault, name, batch, operator)

    def send(self, commit: Callable[[], None]) -> None:
        """Carry a commit to its table; a drill may lose it."""
        self._scene.send(commit)

    def heal(self, *, inputs: bool = True, files: bool = True) -> None:
        """Put back what a drill has damaged, once this attempt has noticed; `inputs` and `files` too."""
        if self._plan.allowed and storage.hurt(self.lake):
            for done in storage.heal(self.lake, inputs=inputs, files=files):
                self.record("heal", done)
                self.say(f"healed: {done}")

    @property
    def waiting(self) -> tuple[Fault, ...]:
        return tuple(self._waiting)

    def spoil(self, fault: Fault, do: Callable[[Fault], str]) -> None:
        """An input fault: done to the files rather than to this process."""
        what = do(fault)
        if self._plan.take(fault, self.number):
            self.record("fault", fault.kind, phase="the input", fault=str(fault), partition=what)
            self.say(f"fault: {fault.known.breaks}: {what}")

    def settle(self) -> None:
        """Wait for whoever was started beside this attempt."""
        self._scene.settle()

    def record(self, kind: str, name: str, batch: int | None = None, operator: str | None = None, **detail: Any) -> None:
        row = {
            "at": dt.datetime.now(dt.UTC).isoformat(),
            "job": self.job,
            "attempt": self.number,
            "operator": operator,
            "batch": batch,
            "kind": kind,
            "name": name,
            "detail": json.dumps(detail) if detail else None,
        }
        os.write(self._file, json.dumps(row).encode() + b"\n")

    def say(self, line: str) -> None:
        """Progress for the person who watches."""
        self._announce(line)

    def _expect_faults(self) -> None:
        self._plan, self._scene = FaultPlan(self.lake), Scene(self.lake)
        self._waiting = [fault for fault in self._plan.waiting() if fault.replica in (None, self.replica)]

    def start_clocks(self) -> None:
        """From now on, faults that wait for a time rather than for a phase come closer."""
        for fault in self._waiting:
            if fault.after is not None:
                self._strike_after(fault.after, fault)

    def _strike_after(self, seconds: float, fault: Fault) -> None:
        """At its time, or as soon as there is what it strikes."""

        def now() -> None:
            if possible(fault, self._scene):
                self._strike(fault, f"{fault.after:g} s after the start", None, None)
            else:
                self._strike_after(_LOOK_AGAIN_SECONDS, fault)

        timer = threading.Timer(seconds, now)
        timer.daemon = True
        timer.start()

    def _strike(self, fault: Fault, phase: str, batch: int | None, operator: str | None) -> None:
        if not possible(fault, self._scene) or not self._plan.take(fault, self.number):
            return
        self.record("fault", fault.kind, batch, operator, phase=phase, fault=str(fault))
        where = phase + (f", batch {batch}" if batch else "")
        self.say(f"fault: {fault.known.breaks} at {where}")
        strike(fault, self._scene)


def fold(lake: Lake) -> None:
    """Move what the journals hold and the table does not yet."""
    if not folder(lake).exists():
        return
    while True:
        handle = lake.open("history", history.SCHEMA)
        rows, transactions = _beyond(lake, handle)
        if not rows:
            return
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
        try:
            write_deltalake(handle, pa.Table.from_pylist(rows, history.SCHEMA), mode="append", commit_properties=properties)
        except CommitFailedError:
            continue  # somebody else folded at the same time: look again
        return


def _beyond(lake: Lake, table: DeltaTable | None) -> tuple[list[dict[str, Any]], list[Transaction]]:
    """What the journals hold and this version of the table does not, and how far they were read for it."""
    rows, transactions = [], []
    for attempt, file in journals(lake).items():
        app = f"journal-{attempt}"
        known = (table.transaction_version(app) or 0) if table is not None else 0
        lines = file.read_bytes().split(b"\n")[:-1]  # a line without its end is still being written
        if len(lines) > known:
            found = [parsed(line, attempt) for line in lines[known:]]
            rows += [{**row, "at": dt.datetime.fromisoformat(row["at"])} for row in found]
            transactions.append(Transaction(app, len(lines)))
    return rows, transactions


def parsed(line: bytes, attempt: int) -> dict[str, Any]:
    """A line of a journal; one that is damaged is kept as such instead of stopping everybody."""
    try:
        row: dict[str, Any] = json.loads(line)
        dt.datetime.fromisoformat(row["at"])
    except (ValueError, KeyError, TypeError):
        now = dt.datetime.now(dt.UTC).isoformat()
        detail = json.dumps({"line": line[:200].decode(errors="replace")})
        place = {"job": "unknown", "attempt": attempt, "operator": None, "batch": None}
        return {"at": now, **place, "kind": "damaged", "name": "journal line", "detail": detail}
    return row


def read_history(lake: Lake) -> list[dict[str, Any]]:
    """All records in order of time, details decoded. Nothing is written: journals are read where they lie."""
    table = DeltaTable(lake.path("history")) if lake.has("history") else None
    rows: list[dict[str, Any]] = lake.read_version("history", table).to_pylist() if table is not None else []
    rows += _beyond(lake, table)[0]
    for row in rows:
        row["detail"] = json.loads(row["detail"]) if row["detail"] else {}
    return sorted(rows, key=lambda row: (row["at"], row["attempt"]))


def _last_attempt(lake: Lake) -> int:
    """Numbers are never given twice, also when somebody has tidied the journals away."""
    attempts = list(journals(lake))
    if not attempts and lake.has("history"):
        attempts = lake.read("history", columns=["attempt"])["attempt"].to_pylist()
    return max(attempts, default=0)
