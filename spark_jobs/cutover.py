"""The cut-over to new operator versions: refused while one of them lags behind the version it replaces."""

from __future__ import annotations

from spark_jobs.errors import RepriseError
from spark_jobs.graph import Graph
from spark_jobs.lake.outputs import committed_of
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline import Pipeline
from spark_jobs.versions import Version, registry
from spark_jobs.versions import cut_over as make_current


def cut_over(pipeline: Pipeline, lake: Lake) -> list[Version]:
    """Make the versions of the pipeline file current. A reader of the current versions sees the old ones, or all new ones."""
    known, handle = registry(lake), Graph(pipeline, lake).open_outputs()
    matched = known.matching(pipeline)
    for name in pipeline.order:
        version, current = matched.get(name), known.current(name)
        if version is None:
            raise RepriseError(
                f"operator '{name}' as the pipeline file defines it is not in this lake yet. Nothing was changed. "
                "'reprise upgrade' computes it beside the current version."
            )
        if current is None or version.number == current.number:
            continue
        old, new = (committed_of(handle, name, v.number) for v in (current, version))
        reached = new.at.sn if new else version.after_sn
        if old is not None and reached < old.at.sn:
            raise RepriseError(
                f"operator '{name}': version {version.number} has come to event {reached:,} of the log, and version "
                f"{current.number}, which it replaces, to {old.at.sn:,}. Nothing was changed. Run 'reprise upgrade' first."
            )
    return make_current(lake, pipeline)
