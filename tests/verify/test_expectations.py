"""Great Expectations made to fail closed, its results kept, its Data Docs offline. One process serves nearly all tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.errors import IngestRefused, RepriseError
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.verify.expectations import KEPT, SUITES, Suite, build_docs, judge_verdicts, what_failed
from tests.conftest import PIPELINE, take_in

Facts = dict[str, list[Any]]

# Two rows each: the first is broken by a test, the second stays good, so that one bad row has to be enough.
GOOD: dict[str, Facts] = {
    "incoming": {
        "partition": ["hour=00", "hour=01"],
        "rows": [10, 12],
        "accepted": [9, 12],
        "unaccounted": [0, 0],
        "span_days": [0.04, 0.04],
    },
    "complex_events": {
        "operator": ["probing", "waves"],
        "version": [1, 2],
        "matches": [3, 0],
        "reference_matches": [3, 0],
        "false_positives": [0, 0],
        "false_negatives": [0, 0],
        "duplicates": [0, 0],
        "false_order": [0, 0],
        "first_ordinal": [5, None],  # the first four were trimmed; waves found nothing
        "last_ordinal": [7, None],
        "missing_ordinals": [0, 0],
        "null_keys": [0, 0],
        "unprocessed_events": [20, 0],  # not yet is not wrong
    },
    "verdicts": {
        "operator": ["probing", "waves"],
        "version": [1, 0],
        "verdict": ["valid", "unknown"],  # waves could not be read
        "events": [100, 0],
        "matches": [3, 0],
        "reference_matches": [3, 0],
        "properties_checked": [5, 0],
        "properties_unknown": [0, 1],
        "properties_invalid": [0, 0],
        "faults_armed": [1, 1],
        "faults_fired": [1, 0],
    },
}

NOT_NULL = "expect_column_values_to_not_be_null"
BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
EQUAL = "expect_column_pair_values_to_be_equal"
UNIQUE = "expect_compound_columns_to_be_unique"
NULL = "expect_column_values_to_be_null"

COUNTS = ["false_positives", "false_negatives", "duplicates", "false_order", "missing_ordinals", "null_keys"]
PLAIN = ["events", "matches", "reference_matches", "properties_unknown", "properties_invalid", "faults_armed", "faults_fired"]


def each(kind: str, columns: list[str], value: Any) -> list[tuple[str, dict[str, Any]]]:
    """The same mistake in all these columns, each with its own expectation; one run shows them all."""
    return [(f"{kind}({column})", dict.fromkeys(columns, value)) for column in columns]


# What breaks the first row, and the expectation that has to see it.
BROKEN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "incoming": [
        *each(NOT_NULL, list(GOOD["incoming"]), None),
        *each(BETWEEN, ["rows", "accepted"], -1),
        (f"{IN_SET}(unaccounted)", {"unaccounted": 1}),
        (f"{BETWEEN}(span_days)", {"span_days": 400.5}),
    ],
    "complex_events": [
        *each(NOT_NULL, [name for name in GOOD["complex_events"] if name not in ("first_ordinal", "last_ordinal")], None),
        (f"{BETWEEN}(version)", {"version": 0}),
        (f"{UNIQUE}(operator, version)", {"operator": "waves", "version": 2}),
        (f"{EQUAL}(matches, reference_matches)", {"reference_matches": 4}),
        *each(IN_SET, COUNTS, 1),
        *each(BETWEEN, ["matches", "unprocessed_events"], -1),
        (f"{NULL}(operator) where matches > 0 and not first_ordinal >= 1", {"first_ordinal": 0, "last_ordinal": 2}),
        (f"{NULL}(operator) where matches > 0 and last_ordinal - first_ordinal + 1 != matches", {"last_ordinal": 8}),
    ],
    "verdicts": [
        *each(NOT_NULL, list(GOOD["verdicts"]), None),
        (f"{UNIQUE}(operator, version)", {"operator": "waves", "version": 0}),
        (f"{IN_SET}(verdict)", {"verdict": "passed"}),
        *each(BETWEEN, PLAIN, -1),
        (f"{BETWEEN}(properties_checked)", {"properties_checked": 6}),
        (f"{BETWEEN}(version) where verdict == 'valid'", {"version": 0}),
        (f"{IN_SET}(properties_checked) where verdict == 'valid'", {"properties_checked": 4}),
        (f"{IN_SET}(properties_unknown) where verdict == 'valid'", {"properties_unknown": 1}),
        (f"{IN_SET}(properties_invalid) where verdict != 'invalid'", {"properties_invalid": 1}),
        (f"{EQUAL}(matches, reference_matches) where verdict == 'valid'", {"matches": 4}),
        (f"{EQUAL}(faults_armed, faults_fired) where verdict == 'valid'", {"faults_fired": 0}),
    ],
}

# Runs in every Python process below it. Loopback and Unix sockets are not the network.
WATCH = """
import os, sys

def watch(event, args):
    if event not in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        return
    place = args[0] if event.startswith("socket.get") else args[1]
    host = place[0] if isinstance(place, tuple) else place
    if isinstance(place, tuple) or event.startswith("socket.get"):
        if host not in (None, "localhost", "127.0.0.1", "::1"):
            with open(os.environ["NETWORK_LOG"], "a") as log:
                log.write(f"{event} {place}\\n")
            raise OSError("no network in this test")

sys.addaudithook(watch)
"""


@dataclass(frozen=True)
class Served:
    suite: Suite
    lake: Lake
    environment: dict[str, str]
    network: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All shipped suites in one process which is watched from its first instruction on, and a lake."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "sitecustomize.py").write_text(WATCH)
    watched = {"PYTHONPATH": str(folder), "NETWORK_LOG": str(folder / "network.log")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in watched.items():
            patch.setenv(name, value)
        suite = Suite(*(SUITES / f"{name}.yaml" for name in GOOD))
    with suite:
        yield Served(suite, Lake(folder / "lake"), {**os.environ, **watched}, folder / "network.log")


@pytest.fixture(scope="module")
def kept(served: Served) -> Path:
    """The folder with the results and docs of two runs of each suite, one good, one not; and of data that is HTML."""
    for name, facts in GOOD.items():
        served.suite.check(pa.table(facts), of=name, lake=served.lake, subject=f"{name} 1")
        broken = broken_by(name, BROKEN[name][-1][1])
        served.suite.check(broken, of=name, lake=served.lake, subject=f"{name} 2")
    evil = broken_by("complex_events", {"operator": '<script src="https://evil.example/x.js">', "last_ordinal": 8})
    served.suite.check(evil, of="complex_events", lake=served.lake, subject='<img src="https://evil.example/x.png">')
    return served.lake.root / KEPT


def broken_by(name: str, changes: dict[str, Any]) -> pa.Table:
    facts = GOOD[name]
    return pa.table({column: [changes.get(column, values[0]), values[1]] for column, values in facts.items()})


@pytest.mark.parametrize("name", GOOD)
def test_a_suite_passes_good_facts_and_every_expectation_sees_what_breaks_it(name: str, served: Served) -> None:
    checks = served.suite.check(pa.table(GOOD[name]), of=name)
    assert what_failed(checks) == ""
    assert {check.expectation for check in checks} == {expectation for expectation, _ in BROKEN[name]}, "each has its own row"
    failed: dict[str, set[str]] = {}
    for expectation, changes in BROKEN[name]:
        if str(changes) not in failed:
            found = served.suite.check(broken_by(name, changes), of=name)
            failed[str(changes)] = {check.expectation for check in found if not check.met}
        assert expectation in failed[str(changes)], changes


def test_a_failed_check_names_the_row(served: Served) -> None:
    checks = served.suite.check(broken_by("incoming", {"unaccounted": 3}), of="incoming")
    assert (
        what_failed(checks)
        == f"1 of 9 expectation(s) failed: {IN_SET}(unaccounted): 1 unexpected: unaccounted 3, partition hour=00"
    )


def test_facts_that_lack_a_column_are_not_met(served: Served) -> None:
    facts = pa.table(GOOD["verdicts"]).drop(["faults_fired"])
    failed = {c.expectation for c in judge_verdicts(served.suite, served.lake, "small", facts) if not c.met}
    assert failed == {
        f"{NOT_NULL}(faults_fired)",
        f"{BETWEEN}(faults_fired)",
        f"{EQUAL}(faults_armed, faults_fired) where verdict == 'valid'",
    }


def test_no_facts_are_not_a_pass(served: Served) -> None:
    with pytest.raises(RepriseError, match="no facts to judge"):
        served.suite.check(pa.table(GOOD["verdicts"]).slice(0, 0), of="verdicts")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expectations: []", "is empty and would pass anything"),
        ("suite: none", "not a suite"),
        ("[1, 2]", "not a suite"),
        ("expectations: [{type: expect_x, kwarg: {column: x}}]", "nobody would look at 'kwarg'"),
        ("expectations: [{type: expect_x}]\nidentified_bye: [x]", "nobody would look at 'identified_bye'"),
    ],
)
def test_a_file_that_would_prove_nothing_is_refused_at_once(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    with pytest.raises(RepriseError, match=message):
        Suite(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{type: expect_the_moon}", "has no 'expect_the_moon'"),
        ("{type: expect_column_values_to_be_in_set, kwargs: {column: x}}", "did not run: .*value_set.*required"),
    ],
)
def test_an_expectation_that_great_expectations_would_drop_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(f"expectations: [{text}]")
    with pytest.raises(RepriseError, match=message), Suite(file) as suite:
        suite.check(pa.table({"x": [1]}))


def test_what_is_loaded_only_when_it_is_used_works(tmp_path: Path, lake: Lake) -> None:
    """The one expectation that needs scipy, and altair for its page."""
    even = "{values: [1, 2], weights: [0.5, 0.5]}"
    file = tmp_path / "even.yaml"
    file.write_text(
        "expectations: [{type: expect_column_kl_divergence_to_be_less_than, "
        f"kwargs: {{column: x, partition_object: {even}, threshold: 0.1}}}}]"
    )
    with Suite(file) as suite:
        met = [suite.check(pa.table({"x": x}), lake=lake, subject="x")[0].met for x in ([1, 2, 2, 1], [1, 1, 1, 1])]
    assert met == [True, False]


def test_a_process_that_died_is_an_error(lake: Lake) -> None:
    with Suite(SUITES / "incoming.yaml") as suite:
        suite._process.kill()
        with pytest.raises(RepriseError, match=r"\(incoming\): the suite did not run: no reason given, exit code -9"):
            suite.check(pa.table(GOOD["incoming"]), lake=lake, subject="ingest 1")
    assert not lake.has("validations")


def test_every_run_is_kept_as_rows_and_as_a_file_also_when_it_failed(served: Served, kept: Path) -> None:
    rows = [row for row in served.lake.read("validations").to_pylist() if row["subject"] == "incoming 2"]
    assert [row["expectation"] for row in rows if not row["met"]] == [f"{BETWEEN}(span_days)"]
    assert len(rows) == len(BROKEN["incoming"])
    (run,) = {row["run"] for row in rows}
    result = json.loads((kept / "results" / "incoming" / f"{run}.json").read_text())
    assert result["suite_name"] == "incoming"
    assert not result["success"]
    assert result["statistics"]["evaluated_expectations"] == len(rows)
    assert (kept / "docs" / "validations" / "incoming" / f"{run}.html").exists()


def test_a_refused_ingest_keeps_why_and_commits_nothing(tmp_path: Path, lake: Lake, landing: Path) -> None:
    suite = tmp_path / "never.yaml"
    suite.write_text("expectations: [{type: expect_column_values_to_be_between, kwargs: {column: accepted, max_value: 10}}]")
    guarded = parse_pipeline(PIPELINE.replace("buckets: 7", f"expectations: {suite}"), "small.yaml")
    with pytest.raises(IngestRefused, match=r"1 of 1 expectation\(s\) failed: .*Nothing was committed"):
        take_in(guarded, landing, lake)
    (row,) = lake.read("validations").to_pylist()
    assert (row["suite"], row["subject"], row["met"]) == ("never", "ingest 1", False)
    assert "ingest 1: 1 of 1 not met" in next((lake.root / KEPT / "docs" / "validations").rglob("*.html")).read_text()
    assert lake.read("event_log").num_rows == 0


class Page(HTMLParser):
    """What a browser would load, run, or lead to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.policy = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        said = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(said.pop("href", ""))
        if said.get("http-equiv") == "Content-Security-Policy":
            self.policy = said["content"]
        self.loads += [
            said[name] for name in ("src", "srcset", "href", "data", "poster", "action", "background") if name in said
        ]
        self.loads += re.findall(r"url\(.*?\)", said.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.loads += re.findall(r"url\(.*?\)|@import", data)


def test_data_docs_load_nothing_and_their_links_lead_somewhere(kept: Path) -> None:
    files = list((kept / "docs").rglob("*.html"))
    assert len(files) >= 1 + 3 + 7, "the index, a page per suite, a page per run"
    for file in files:
        page = Page(file)
        assert page.loads == [], file
        assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}, file
        assert page.policy == "default-src 'none'; style-src 'unsafe-inline'"
        for link in page.links:
            assert link.startswith("#") or (file.parent / link).exists(), f"{file}: {link}"


def test_the_index_lists_every_run_and_what_it_did_not_meet(kept: Path) -> None:
    index = (kept / "docs" / "index.html").read_text()
    for name in GOOD:
        assert f"{name} 1" in index
        assert f"{name} 2" in index
    assert f"{BETWEEN}(span_days)" in index
    assert "&lt;img src=" in index


def test_docs_are_built_anew_from_what_is_kept_whatever_was_damaged(kept: Path, tmp_path: Path) -> None:
    copy = Lake(tmp_path / "copy")
    shutil.copytree(kept, copy.root / KEPT)
    before = {file.relative_to(copy.root) for file in (copy.root / KEPT / "docs").rglob("*.html")}
    shutil.rmtree(copy.root / KEPT / "docs")
    results = copy.root / KEPT / "results"
    (results / "incoming" / "0.json").write_text("{cut o")
    (results / "nothing_yet").mkdir()
    strange = json.loads(next((results / "verdicts").glob("*.json")).read_text()) | {"suite_name": "strange", "results": [{}]}
    (results / "strange").mkdir()
    (results / "strange" / "1.json").write_text(json.dumps(strange))
    assert build_docs(copy) == copy.root / KEPT / "docs" / "index.html"
    after = {file.relative_to(copy.root) for file in (copy.root / KEPT / "docs").rglob("*.html")}
    assert {str(file.relative_to(Path(KEPT) / "docs")) for file in after - before} == {
        "expectations/strange.html",
        "validations/strange/1.html",
    }
    assert before < after
    plain = (copy.root / KEPT / "docs" / "validations" / "strange" / "1.html").read_text()
    assert "Great Expectations could not render this" in plain


def test_nothing_asks_the_network(served: Served, kept: Path) -> None:
    """Neither loading, nor judging, nor building docs looks up or calls anybody."""
    assert not served.network.exists(), served.network.read_text()
    code = "import socket; socket.create_connection(('192.0.2.1', 9), 1)"
    call = subprocess.run([sys.executable, "-c", code], env=served.environment, capture_output=True, check=False)
    assert b"no network in this test" in call.stderr, "the negative control: the watch does see a call"
    served.network.unlink()


def test_the_jobs_process_never_loads_great_expectations() -> None:
    code = "import sys, spark_jobs.ingest, spark_jobs.verify.expectations; print('great_expectations' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
