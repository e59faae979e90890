"""The comparison with peers compares what it says: every workload means the same to everybody, and a difference is noticed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.engine import BEGIN, MICROSECONDS, detected, make_log
from bench.peers import page
from bench.peers.by_hand import Row, by_hand
from bench.peers.digest import Digest, digest
from bench.peers.flink import job_of
from bench.peers.recovery import Recovery
from bench.peers.results import FLINK_CEP, FLINK_SQL, REPRISE, STREAMING, Result, compared, times_faster, write_lines
from bench.peers.side_by_side import TIMES_FASTER, throughput_bars
from bench.peers.workloads import BY_NAME, LOGS, WORKLOADS, Windows, Workload
from spark_jobs.detect import Settings
from spark_jobs.errors import RepriseError
from spark_jobs.lake.scan import open_log
from spark_jobs.lake.tables import Lake
from spark_jobs.runner import InlineRunner
from tests.cep import oracle

# The oracle asks again at every event, so that twice as many cost it four times more. 5 keys have 80 events each: some match.
EVENTS, KEYS = 400, 5
# More for those who are compared with each other only.
MORE, MORE_KEYS = 20_000, 200

Matches = set[tuple[int, tuple[int, ...]]]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], Lake]:
    made = {}
    for number, (name, shape) in enumerate(LOGS.items()):
        workload = next(workload for workload in WORKLOADS if workload.log == name)
        for events, keys in ((EVENTS, KEYS), (MORE, MORE_KEYS)):
            lake = Lake(tmp_path_factory.mktemp(f"log-{number}-{events}") / "lake")
            make_log(workload.pipeline(), lake, replace(shape, events=events, keys=keys))
            made[name, events] = lake
    return made


def rows(lake: Lake) -> Iterator[tuple[str, Row]]:
    log = lake.read("event_log", ["sn", "key", "type", "v"]).sort_by("sn")
    for event in log.to_pylist():
        sn = event["sn"]
        yield event["key"], Row(sn, BEGIN + sn * MICROSECONDS, event["type"], event["v"])


def windows_of(sn: int, windows: Windows) -> range:
    """From what a window covers, one after the other."""
    last = (sn - 1) // windows.slide + 1
    return range(next(y for y in range(1, last + 1) if sn <= (y - 1) * windows.slide + windows.size), last + 1)


def ours(workload: Workload, lake: Lake, batch: int) -> Matches:
    detected(workload.pipeline(), lake, InlineRunner(), Settings(batch))
    found = lake.read("complex_events", ["y", "sns"]).to_pylist()
    return {(match["y"], tuple(match["sns"])) for match in found}


def written_by_hand(workload: Workload, lake: Lake) -> Matches:
    parts: dict[object, list[Row]] = defaultdict(list)
    for key, row in rows(lake):
        if workload.windows:
            for y in windows_of(row.sn, workload.windows):
                parts[y].append(row)
        else:
            parts[key if workload.keyed else 1].append(row)
    found: Matches = set()
    for part, mine in parts.items():
        # Cut in two, as micro-batches do.
        runs, first = by_hand(workload)([], mine[: len(mine) // 2])
        _, rest = by_hand(workload)(runs, mine[len(mine) // 2 :])
        y = int(str(part)) if workload.windows else 1
        found |= {(y, sns) for sns in first + rest}
    return found


def oracles(workload: Workload, lake: Lake) -> Matches:
    case = oracle.Case(
        workload.pattern(),
        kind="count" if workload.windows else "none",
        size=workload.windows.size if workload.windows else 0,
        slide=workload.windows.slide if workload.windows else 0,
        within=workload.within * 1_000_000,
        define={symbol: predicate.replace("type", "letters") for symbol, predicate in workload.define().items()},
    )
    # Whole numbers in the order of the values: all that the patterns ask of them.
    order = {v: place for place, v in enumerate(sorted(row.v for _, row in rows(lake)))}
    events = [oracle.Event(row.sn, row.ts, key if workload.keyed else "", row.type, order[row.v]) for key, row in rows(lake)]
    return {(match.y, tuple(event.sn for _, event in match.bound)) for match in oracle.matches(case, events)}


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_we_find_what_the_oracle_finds(name: str, lakes: Mapping[tuple[str, int], Lake]) -> None:
    workload = BY_NAME[name]
    if workload.windows:  # windows of 1,000 events are too much for it; what they are is the same
        workload = replace(workload, windows=Windows(200, 50))
    lake = lakes[workload.log, EVENTS]
    found = ours(workload, lake, EVENTS)
    assert len(found) >= 3
    assert found == oracles(workload, lake)


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_we_find_what_the_operator_written_by_hand_finds(name: str, lakes: Mapping[tuple[str, int], Lake]) -> None:
    workload = BY_NAME[name]
    lake = lakes[workload.log, MORE]
    found = ours(workload, lake, MORE // 3)
    assert len(found) > 100
    assert found == written_by_hand(workload, lake)


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_what_is_found_in_the_first_events_is_what_is_found_up_to_there(
    name: str, lakes: Mapping[tuple[str, int], Lake], tmp_path: Path
) -> None:
    """Peers read fewer events; this is why their matches can be compared."""
    workload = BY_NAME[name]
    lake = lakes[workload.log, MORE]
    ours(workload, lake, MORE // 2)
    commits = lake.read("complex_events", ["batch", "y", "sns"])
    first = [(m["y"], m["sns"]) for m in commits.to_pylist() if m["batch"] == 1]
    whole = digest(commits["y"], commits["sns"].combine_chunks(), MORE // 2)
    assert whole == digest(np.array([y for y, _ in first]), pa.array([sns for _, sns in first]), MORE)


# The comparison


def of(*matches: tuple[int, list[int]], until: int = 100) -> Digest:
    return digest(np.array([y for y, _ in matches]), pa.array([sns for _, sns in matches], pa.list_(pa.int64())), until)


FOUND = ((1, [1, 2, 5]), (1, [7, 9]), (2, [7, 9]))


def test_matches_are_equal_in_any_order() -> None:
    assert of(*FOUND) == of(*reversed(FOUND))


@pytest.mark.parametrize(
    "other",
    [
        FOUND[:2],  # one is missing
        (*FOUND, FOUND[0]),  # one came twice
        ((1, [1, 2, 5]), (1, [7, 10]), (2, [7, 9])),  # another event
        ((1, [1, 5, 2]), (1, [7, 9]), (2, [7, 9])),  # bound the other way round
        ((1, [1, 2, 5]), (1, [7, 9]), (3, [7, 9])),  # another window
        ((1, [1, 2, 5, 7]), (1, [9]), (2, [7, 9])),  # the same events, otherwise shared out
    ],
)
def test_a_difference_is_noticed(other: tuple[tuple[int, list[int]], ...]) -> None:
    assert of(*FOUND) != of(*other)


def test_matches_beyond_the_events_of_a_peer_do_not_count() -> None:
    assert of(*FOUND, until=8) == of(FOUND[0])


def test_the_digest_is_the_one_of_the_java_program() -> None:
    """Said by FlinkPeer.java of a match with window 1 and SNs 1, 2, 5; splitmix64, written out."""

    def mixed(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    hash_ = mixed(1)
    for sn in (1, 2, 5):
        hash_ = mixed(hash_ ^ sn)
    assert of((1, [1, 2, 5])) == (1, f"{hash_:016x}")


def results(peer_finds: str) -> list[Result]:
    made = []
    for workload in WORKLOADS:
        made += [
            Result(workload.name, REPRISE, 1_000, 0.001, 3, "ab", same=True),
            Result(workload.name, "DuckDB", 1_000, 0.001),
        ]
        made += [compared(Result(workload.name, who, 100, 1.0, 3, peer_finds), Digest(3, "ab")) for who in TIMES_FASTER]
    return made


def test_no_speed_is_compared_with_a_peer_that_found_something_else() -> None:
    wrong = compared(Result("abcde, keyed", FLINK_CEP, 100, 1.0, 3, "cd"), Digest(3, "ab"))
    assert wrong.same is False
    with pytest.raises(RepriseError, match="are not ours"):
        times_faster(Result("abcde, keyed", REPRISE, 100, 0.1, 3, "ab", same=True), wrong)


def test_a_peer_that_found_something_else_fails_its_bar() -> None:
    right, wrong = throughput_bars(results("ab")), throughput_bars(results("cd"))
    assert all(bar.ok for bar in right)
    assert {bar.bar.partition(": ")[2].partition(",")[0] for bar in wrong if not bar.ok} == set(TIMES_FASTER)
    assert not any("times the speed" in bar.bar for bar in wrong)


# What peers are told


def test_flink_is_told_of_every_file_in_the_order_of_the_log(lakes: Mapping[tuple[str, int], Lake]) -> None:
    workload = BY_NAME["abcde, keyed"]
    lake = lakes[workload.log, MORE]
    make_log(workload.pipeline(), lake, replace(LOGS[workload.log], events=1_000, keys=MORE_KEYS))
    files = open_log(lake, workload.pipeline().source.schema).files
    commits = job_of(workload, files)["commits"]
    assert [len(commit) for commit in commits] == [8, 8]
    assert sorted(path for commit in commits for path in commit) == sorted(file.path for file in files)


def test_sql_passes_over_what_no_step_takes_and_stops_at_a_negation() -> None:
    query = BY_NAME["negation"].sql()
    assert "PATTERN (A GB* B GD* D)" in query
    assert "GD AS GD.type IN ('a', 'b', 'e', 'f', 'g', 'h', 'i', 'j')" in query


# The page


def test_the_page_says_what_the_lines_say(tmp_path: Path) -> None:
    recovery = [
        Recovery(who, 500, again, seconds=0.5, whole=5.0, stored=1_000, failed=failed).as_line()
        for who, again, failed in (("Flink, hashmap", 61_234, 2), ("Flink, rocksdb", 70_000, 0), (REPRISE, 4_321, 0))
    ]
    more = [{"kind": "windows", "overlapping_against_tumbling": 1.5}, {"kind": "checkpoint", "who": STREAMING, "stored": 9_000}]
    write_lines([*(result.as_line() for result in results("ab")), *more, *recovery], tmp_path / "results" / "peers.jsonl")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write_page(readme, tmp_path / "results" / "peers.jsonl")
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "61,234" in text
    assert "Flink, hashmap: 2 recoveries before this one ended with an error" in text
    assert "Flink, rocksdb: 0" not in text
    assert all(workload.name in text for workload in WORKLOADS)
    assert all(who in text for who in (FLINK_CEP, FLINK_SQL, STREAMING))
    for picture in ("peers-throughput.svg", "peers-recovery.svg"):
        drawn = (tmp_path / "results" / picture).read_text()
        assert drawn.startswith("<svg")
        assert drawn.count('aria-roledescription="bar"') >= 8  # what has no place to begin on its scale is not drawn
    assert FLINK_CEP not in drawn  # how long a workload takes is no time to catch up


def test_the_page_shows_the_throughput_where_what_comes_after_it_failed(tmp_path: Path) -> None:
    lines = [*(result.as_line() for result in results("ab")), {"kind": "windows", "overlapping_against_tumbling": 1.5}]
    write_lines(lines, tmp_path / "results" / "peers.jsonl")
    readme = tmp_path / "README.md"
    readme.write_text(f"{page.BEGIN}\n{page.END}\n")
    page.write_page(readme, tmp_path / "results" / "peers.jsonl")
    assert all(workload.name in readme.read_text() for workload in WORKLOADS)
    assert "After a kill: not measured yet" in readme.read_text()
