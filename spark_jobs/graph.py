"""A pipeline over a lake: where every operator version reads, and where it begins."""

from __future__ import annotations

from dataclasses import dataclass, field

from deltalake import DeltaTable
from deltalake.transaction import AddAction

from spark_jobs.cep.order import Instant
from spark_jobs.errors import RepriseError, TrimmedEventNeeded
from spark_jobs.feeds import Feed, feed_of
from spark_jobs.lake.aside import Aside
from spark_jobs.lake.commit import add_file, renewed
from spark_jobs.lake.outputs import open_outputs, output_folder, output_of
from spark_jobs.lake.scan import EventLog, open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import EVENT_LOG, Pipeline
from spark_jobs.recovery.savepoint import Edge, Savepoint, starting_at
from spark_jobs.recovery.store import Savepoints, SavepointTable
from spark_jobs.versions import Version, registry


@dataclass(frozen=True)
class Graph:
    """The operators of a pipeline and the tables they read and write."""

    pipeline: Pipeline
    lake: Lake
    aside: Aside = field(default_factory=Aside, compare=False, kw_only=True)

    def savepoints(self) -> Savepoints:
        return SavepointTable(self.lake, self.aside)

    def open_log(self) -> EventLog:
        return open_log(self.lake, self.pipeline.source.schema)

    def open_outputs(self) -> DeltaTable:
        return open_outputs(self.lake, self.pipeline.output_schema)

    def renewed(self, outputs: DeltaTable) -> DeltaTable:
        """The same table as it is now; the handle is the caller's own."""
        return renewed(outputs)

    def written(self, version: Version, name: str, rows: int) -> AddAction:
        """A file of complex events that a task wrote, ready to be published."""
        path = f"{output_folder(version.operator, version.number)}/{name}"
        values = {"operator": version.operator, "version": str(version.number)}
        return add_file(self.lake.path("complex_events"), path, rows, **values)

    def feed(self, version: Version) -> Feed:
        """What an operator version reads, as it is now."""
        outputs = {}
        if version.operators:
            handle = self.open_outputs()
            outputs = {name: output_of(self.lake, handle, name, number) for name, number in version.operators.items()}
        inputs = self.pipeline.operators[version.operator].inputs
        return feed_of(self.pipeline.built[version.operator], inputs, self.open_log(), outputs)

    def beginning(self, version: Version, feed: Feed) -> Savepoint:
        """The savepoint a first start recovers from: empty, after the point of the log that the version begins at."""
        at = Instant()
        if version.after_sn:
            log = self.open_log()
            if not log.trimmed_sn <= version.after_sn <= log.last_sn:
                raise TrimmedEventNeeded(
                    f"operator '{version.operator}' cannot begin after event {version.after_sn:,}: the log holds what lies "
                    f"between {log.trimmed_sn:,} and {log.last_sn:,}. Nothing was changed."
                )
            at = Instant(log.stream_ts_at(version.after_sn), version.after_sn)
        edges = feed.edges(at) if self.pipeline.ordering is None else self._in_time(version, at)
        return starting_at(self.pipeline.built[version.operator], version.number, at, edges)

    def _in_time(self, version: Version, at: Instant) -> list[Edge]:
        """In order of time nobody can say which complex events lie before an event of the log: it begins with what it reads."""
        known = {(v.operator, v.number): v.after_sn for v in registry(self.lake).versions} if version.after_sn else {}
        for upstream in version.operators.items():
            if known.get(upstream, version.after_sn) != version.after_sn:
                raise RepriseError(
                    f"operator '{version.operator}' cannot begin after event {version.after_sn:,}: with 'ordering' it begins "
                    f"where '{upstream[0]}' begins, which it reads (after event {known[upstream]:,}). Nothing was changed. Let "
                    f"both begin there: reprise upgrade PIPELINE --lake LAKE --again {upstream[0]} --from {version.after_sn}"
                )
        return [Edge(name, 0, at.sn if name == EVENT_LOG else 0) for name in self.pipeline.operators[version.operator].inputs]

    def admit(self, version: Version) -> None:
        """Refuse a version that would need what has been trimmed."""
        feed = self.feed(version)
        feed.check(self.beginning(version, feed))
