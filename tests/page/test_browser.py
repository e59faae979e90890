"""The page in a real Chromium, inside a real Airflow: opened from the navigation, a drill started, watched and read.

Screenshots are kept in `.local/screenshots/`, for people to look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.detect import Settings, detect
from spark_jobs.lake.history import Attempt
from spark_jobs.lake.tables import Lake
from spark_jobs.pipeline_file import parse_pipeline
from spark_jobs.runner import InlineRunner
from tests.airflow_server import Server, running_airflow
from tests.conftest import take_in
from tests.page.chromium import PROGRAM, Tab, chromium, until
from tests.page.conftest import ROOT

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here; install it (Debian: apt-get install chromium)"),
]

PICTURES = ROOT / ".local" / "screenshots"
SCRIPT = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
SHOP = """
name: shop
source:
  columns: {ts: time, type: kind, key: card, source_seq: seq, arrival_ts: seen}
  attributes: {amount: double, note: string}
  quarantine_limit: 0.5
operators:
  probing:
    partition_by: key
    pattern: A -> B
    define: {A: type = 'a', B: type = 'b'}
    measures: {paid: B.amount, said: B.note}
"""


def landing_of(folder: Path) -> Path:
    """Forty events of five cards; every note is a script, and so is a row that cannot be used."""
    partition = folder / "date=2026-01-01" / "hour=00" / "source=till-1"
    partition.mkdir(parents=True)
    at = "2026-01-01T00:{:02}:00Z".format
    rows = [
        {
            "time": at(n),
            "seen": at(n),
            "kind": "ab"[n // 5 % 2],
            "card": f"c{n % 5}",
            "seq": n,
            "amount": n * 1.5,
            "note": SCRIPT,
        }
        for n in range(40)
    ]
    lines = [json.dumps(row) for row in rows] + [json.dumps({**rows[0], "seq": 99, "time": SCRIPT})]
    (partition / "part-0.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A pipeline with data, and one for drills."""
    root = tmp_path_factory.mktemp("browser")
    (root / "pipelines").mkdir()
    (root / "pipelines" / "shop.yaml").write_text(SHOP)
    (root / "pipelines" / "cards.yaml").write_text((ROOT / "examples" / "card_probing.yaml").read_text())
    pipeline, lake = parse_pipeline(SHOP, "shop.yaml"), Lake(root / "lakes" / "shop")
    take_in(pipeline, landing_of(root / "landing" / "shop"), lake)
    attempt = Attempt(lake, "detect")
    detect(pipeline, lake, InlineRunner(), attempt, Settings(batch_events=10, shards=2))
    attempt.record("end", "done")
    names = {"PIPELINES": "pipelines", "LANDING": "landing", "LAKES": "lakes", "DRILLS": "drills"}
    return {f"REPRISE_{name}": str(root / folder) for name, folder in names.items()}


@pytest.fixture(scope="module")
def server(installation: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    users = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,looker:viewer"}
    with running_airflow(tmp_path_factory.mktemp("airflow"), **installation, **users) as up:
        up.wait_for_dags("recovery_drill")
        yield up


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A desktop in the light; what the page complains about is a failure."""
    browser.screen(1280, 900)
    browser.complaints.clear()
    yield browser
    ours = [complaint for complaint in browser.complaints if "/reprise/" in complaint or "Content Security" in complaint]
    assert ours == []


def log_in(tab: Tab, server: Server, user: str = "admin") -> None:
    """As people do, in Airflow's own form."""
    tab.forget_login()
    tab.open(f"{server.base}/auth/login")
    tab.type("input[name=username]", user)
    tab.type("input[name=password]", server.passwords[user])
    tab.press("Enter")
    tab.wait("!location.pathname.startsWith('/auth')")


def visit(tab: Tab, server: Server, view: str = "") -> None:
    """A view of the page, by itself; Airflow's frame around it is a test of its own."""
    tab.open("about:blank")
    tab.open(f"{server.base}/reprise/#/{view}")
    tab.wait("!!page.querySelector('main .view, main .note') && !page.querySelector('main[aria-busy]')")


def test_the_page_needs_a_login(tab: Tab, server: Server) -> None:
    tab.forget_login()
    tab.open(f"{server.base}/reprise/")
    assert tab.text() == "You are not logged in, or no longer. Log in to Airflow, then open this page again."
    tab.complaints.clear()  # the browser itself complains about a 401


def test_the_page_is_in_airflows_navigation(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    tab.click_text("nav a, nav button, a", "Reprise")
    tab.wait("location.pathname.startsWith('/plugin/reprise')")
    tab.wait("[...page.querySelectorAll('h2 a')].map((e) => e.textContent).join() === 'card_probing,shop'")
    tab.shoot(PICTURES / "airflow.png")
    assert "Nothing was ingested yet. Put files into" in tab.text()
    assert "40" in tab.text()


def test_the_page_is_as_dark_as_airflow_around_it(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    tab.open(f"{server.base}/plugin/reprise")
    tab.wait("page !== document && !!page.querySelector('main .view')")
    for theme, other in (("dark", "light"), ("light", "dark")):
        tab.run(f"document.documentElement.classList.replace('{other}', '{theme}')")
        tab.wait(f"page.documentElement.dataset.theme === '{theme}'")


def test_a_script_in_an_attribute_is_shown_and_not_run(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    for view in ("p/shop/matches", "p/shop/aside"):
        visit(tab, server, view)
        tab.wait("page.body.innerText.includes('<script>')")
    visit(tab, server, "p/shop/matches")
    tab.click("tbody a")
    tab.wait("page.body.innerText.includes('Events it has bound')")
    assert "<script>" in tab.text()
    assert tab.run("page.querySelectorAll('main img, main script').length") == 0
    assert tab.run("document.title") != "run"
    tab.shoot(PICTURES / "match.png")


def test_matches_are_searched_with_the_keyboard_alone(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    visit(tab, server, "p/shop")
    tab.press("/")  # from anywhere in a pipeline
    tab.wait("page.activeElement.name === 'text'")
    tab.call("Input.insertText", text="C3")  # in any case
    tab.press("Enter")
    tab.wait("location.hash.includes('text=C3')")
    tab.wait("[...page.querySelectorAll('td[data-label=key]')].every((e) => e.textContent === 'c3')")
    assert tab.run("page.querySelectorAll('tbody tr').length") > 0


def test_the_time_line_is_read_and_zoomed_with_the_keyboard(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    visit(tab, server, "p/shop")
    tab.wait("!!page.querySelector('.chart svg .batch')")
    assert "4 batches, 4 savepoints" in tab.run("page.querySelector('.said').textContent")
    tab.run("page.querySelector('.chart').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowLeft")
    tab.wait("/batch|ingested/.test(page.querySelector('.said').textContent)")
    before = tab.run("page.querySelector('.chart svg').outerHTML.length")
    tab.press("+")
    tab.wait(f"page.querySelector('.chart svg').outerHTML.length !== {before}")
    tab.press("0")


def test_who_may_only_look_cannot_start_a_drill(tab: Tab, server: Server) -> None:
    log_in(tab, server, "looker")
    visit(tab, server)
    assert "shop" in tab.text()
    visit(tab, server, "p/shop")
    assert not tab.run("!!page.querySelector('[data-replay]')")
    visit(tab, server, "drills/new")
    assert "You may not trigger the DAG recovery_drill" in tab.text()
    code = """fetch('api/drills', {method: 'POST', headers: {'Content-Type': 'application/json', 'X-Reprise': '1'},
        body: JSON.stringify({pipeline: 'card_probing', faults: 'kill_driver:detect.saved@1'})}).then((a) => a.status)"""
    assert tab.run(code) == 403
    tab.complaints.clear()  # the browser itself complains about a 403


def test_the_data_docs_of_a_pipeline_open_and_lead_on(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    visit(tab, server, "p/shop")
    tab.open(tab.run("[...page.querySelectorAll('a')].find((e) => e.textContent === 'Data Docs').href"))
    assert "Every run of a suite over what came in and what went out" in tab.text()
    tab.click_text("h2 a", "incoming")  # a page of its own, sandboxed: the browser still says who is asking
    tab.wait("location.pathname.endsWith('/docs/expectations/incoming.html')")
    assert "Suite incoming" in tab.text()


def test_a_replay_that_would_wait_says_what_to_do(tab: Tab, server: Server) -> None:
    """The DAGs of a pipeline are paused until somebody wants them; tests/test_airflow_bars.py has a replay that runs."""
    log_in(tab, server)
    visit(tab, server, "p/shop")
    assert "Nothing comes out twice." in tab.text()
    tab.click("[data-replay]")
    tab.wait("/The DAG shop.ingest is paused.*Unpause it/.test(page.querySelector('.replay').textContent)")
    tab.shoot(PICTURES / "replay.png")
    tab.complaints.clear()  # the browser itself complains about a 400


def test_a_drill_is_started_from_the_form_watched_and_its_report_opened(tab: Tab, server: Server) -> None:
    log_in(tab, server)
    visit(tab, server, "drills")
    assert "No drill was made yet" in tab.text()
    tab.click_text("a", "Start a drill")
    tab.wait("!!page.querySelector('form.drill')")
    tab.shoot(PICTURES / "form.png")
    tab.click_text("form.drill button", "Start the drill")
    tab.wait("/^#.drills.drill-/.test(location.hash)")
    tab.wait("page.querySelectorAll('.steps li').length >= 5", 120)
    tab.wait("/is running|was broken/.test(page.querySelector('.now')?.textContent ?? '')", 120)
    tab.shoot(PICTURES / "running.png")
    tab.wait("!!page.querySelector('.verdict')", 300)
    assert "Every complex event came out exactly once." in tab.text()
    assert tab.run("page.querySelector('#live').textContent") == "The drill is over: valid."
    tab.wait("!!page.querySelector('.chart .mark')")
    tab.run("page.querySelector('iframe.report').scrollIntoView()")
    until(lambda: "every published match is in the reference" in tab.frame("/report"), "the report was not shown")
    assert "<script" not in tab.frame("/report")
    tab.shoot(PICTURES / "report.png")
    visit(tab, server, "drills")
    assert "valid" in tab.text()


@pytest.mark.parametrize("name", ["light", "dark", "phone"])
def test_it_is_readable_in_light_in_dark_and_on_a_phone(name: str, tab: Tab, server: Server) -> None:
    dark, phone, width = name != "light", name == "phone", 390 if name == "phone" else 1280
    log_in(tab, server)
    tab.screen(width, 844 if phone else 900, dark=dark, phone=phone)
    done = tab.run("fetch('/reprise/api/drills').then((a) => a.json()).then((a) => a.drills[0]?.drill)")
    views = {"pipelines": "", "pipeline": "p/shop", "matches": "p/shop/matches", "aside": "p/shop/aside", "form": "drills/new"}
    for view, path in {**views, "drills": "drills", **({"drill": f"drills/{done}"} if done else {})}.items():
        visit(tab, server, path)
        tab.wait("[...page.querySelectorAll('.chart')].every((chart) => chart.querySelector('svg'))")
        assert tab.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert tab.run("document.documentElement.scrollWidth") <= width, f"{view} is wider than the screen"
        tab.shoot(PICTURES / f"{name}-{view}.png")
