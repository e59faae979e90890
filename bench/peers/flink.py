"""Flink as a peer: its jars in an environment of their own, one Java program, a JVM per workload.

Its program reads the same Parquet files; the classes for that come with Spark, as Flink's own package brings none.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyspark

from bench.engine import BEGIN
from bench.peers.results import FLINK_CEP, FLINK_SQL, Result
from bench.peers.workloads import Workload
from spark_jobs.errors import RepriseError
from spark_jobs.lake.scan import LogFile

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("FlinkPeer.java")
HOME = ROOT / ".local" / "peers"
CORES = 2
# What compiles in the first seconds is compiled for all jobs of the JVM.
WARM_UP = 100_000
SECONDS = 600  # no job takes a tenth of it
_PARQUET = ("parquet-*", "hadoop-client-api-*", "hadoop-client-runtime-*", "snappy-java-*", "jts-core-*")


@dataclass(frozen=True)
class Flink:
    """Flink, installed and with our program compiled."""

    classpath: str

    @classmethod
    def installed(cls) -> Flink:
        lib = ROOT / subprocess.run([ROOT / "scripts" / "flink"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
        jars = Path(pyspark.__file__).parent / "jars"
        parquet = [str(jar) for pattern in _PARQUET for jar in sorted(jars.glob(pattern))]
        classes = HOME / "classes"
        classes.mkdir(parents=True, exist_ok=True)
        classpath = ":".join([str(classes), f"{lib}/*", *parquet])
        compiled = classes / "FlinkPeer.class"
        if not compiled.exists() or compiled.stat().st_mtime < PROGRAM.stat().st_mtime:
            options = ["-J-XX:-UsePerfData", "-Xlint:-options", "--release", "17", "-nowarn", "-proc:none"]
            subprocess.run(["javac", *options, "-cp", classpath, "-d", str(classes), str(PROGRAM)], check=True)
        return cls(classpath)

    def command(self, job: dict[str, Any], folder: Path) -> list[str]:
        """A JVM for one job."""
        file = folder / "job.json"
        file.write_text(json.dumps(job))
        options = ["-XX:-UsePerfData", "-Xmx4g", "-XX:+UseParallelGC", f"-XX:ActiveProcessorCount={CORES}"]
        return ["java", *options, f"-Djava.io.tmpdir={folder}", "-cp", self.classpath, PROGRAM.stem, str(file)]

    def run(self, workload: Workload, who: str, files: Sequence[LogFile], events: int, folder: Path) -> Result:
        """One workload, from the first event read to the last match."""
        folder.mkdir(parents=True, exist_ok=True)
        job = {**job_of(workload, files), "events": events, "warm_up": min(WARM_UP, events // 2)}
        if who == FLINK_SQL:
            job["sql"] = workload.sql()
        try:
            done = subprocess.run(
                self.command(job, folder), text=True, capture_output=True, cwd=folder, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise RepriseError(
                f"{who} took more than {SECONDS} s for {events:,} events of {workload.name}; ask it for fewer"
            ) from error
        if done.returncode:
            raise RepriseError(f"{who} failed with {workload.name}: {done.stderr[-2000:]}")
        said = json.loads(done.stdout.strip().splitlines()[-1])
        return Result(workload.name, who, events, said["seconds"], said["matches"], said["digest"], note=_note(workload, who))


def _note(workload: Workload, who: str) -> str:
    if workload.windows:
        return "has no windows inside patterns: every event is copied into each of its windows"
    if who == FLINK_SQL and not workload.rising:
        return "has strict steps only: symbols of their own for the rows in between"
    return ""


def job_of(workload: Workload, files: Sequence[LogFile]) -> dict[str, Any]:
    """What FlinkPeer.java needs to know of a workload."""
    commits = sorted({file.first_sn for file in files})
    by_bucket = sorted(files, key=lambda file: file.bucket)
    return {
        "cores": CORES,
        "commits": [[file.path for file in by_bucket if file.first_sn == first] for first in commits],
        "begin_ms": BEGIN // 1000,
        "keyed": workload.keyed,
        "within": workload.within,
        "steps": [asdict(step) for step in workload.steps],
        "rising": workload.rising,
        "with_v": workload.rising,
        **({"window": asdict(workload.windows)} if workload.windows else {}),
    }


PEERS = (FLINK_CEP, FLINK_SQL)
