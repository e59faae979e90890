"""A real Chromium, spoken to over the DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from spark_jobs.drills.processes import awaited

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
]  # fmt: skip
# A busy machine with two cores takes its time.
PATIENCE = 60.0
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "ArrowRight": (39, ""), "ArrowLeft": (37, "")}


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    assert PROGRAM
    process = subprocess.Popen(
        [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port_file = profile / "DevToolsActivePort"
        until(lambda: port_file.exists() and len(port_file.read_text().splitlines()) == 2, "Chromium did not start")
        port = port_file.read_text().splitlines()[0]
        page = next(target for target in targets(port) if target["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Tab(socket, port)
    finally:
        process.terminate()
        process.wait(30)


def targets(port: str) -> list[dict[str, str]]:
    """The pages and frames that the browser has open."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
        found: list[dict[str, str]] = json.load(answer)
        return found


def until(true: Any, otherwise: str, seconds: float = PATIENCE) -> None:
    assert awaited(true, seconds), otherwise


class Refused(Exception):
    """The browser could not do what it was asked."""


class Tab:
    """One page. What it says in the console is kept in `complaints`."""

    def __init__(self, socket: ClientConnection, port: str) -> None:
        self._socket, self._port, self._number = socket, port, 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE))
            if message.get("id") == self._number:
                if "error" in message:
                    raise Refused(message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def run(self, script: str) -> Any:
        """The value of a script; `page` is the document of Reprise, in Airflow's frame or alone."""
        page = "const page = document.querySelector('iframe[title=Reprise]')?.contentDocument ?? document;"
        answer = self.call(
            "Runtime.evaluate", expression=f"(() => {{ {page} return {script} }})()", returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, script: str, seconds: float = PATIENCE) -> None:
        try:
            until(lambda: self._holds(script), f"never true: {script}", seconds)
        except AssertionError as error:
            error.add_note(f"the page shows: {self.text()[:2000]}\nthe browser complains: {self.complaints}")
            raise

    def _holds(self, script: str) -> bool:
        try:
            return bool(self.run(script))
        except Refused:  # the page is just being left for another
            return False

    def text(self) -> str:
        return str(self.run("page.body?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        self.wait(f"!!page.querySelector({json.dumps(selector)})")
        self.run(f"page.querySelector({json.dumps(selector)}).click()")

    def click_text(self, selector: str, text: str) -> None:
        found = f"[...page.querySelectorAll({json.dumps(selector)})].find((e) => e.textContent.includes({json.dumps(text)}))"
        self.wait(f"!!{found}")
        self.run(f"{found}.click()")

    def type(self, selector: str, text: str) -> None:
        self.wait(f"!!page.querySelector({json.dumps(selector)})")
        self.run(f"page.querySelector({json.dumps(selector)}).focus()")
        self.run("page.activeElement.select?.()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code, text = KEYS.get(key, (ord(key.upper()[0]), key))
        common = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screen(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        scale = 2 if phone else 1
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def shoot(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def frame(self, address: str) -> str:
        """What is in a sandboxed frame. It is a process of its own, into which no script of the page can look."""
        inside = [target for target in targets(self._port) if target["url"].endswith(address)]
        if not inside:
            return ""
        with connect(inside[0]["webSocketDebuggerUrl"], max_size=None) as socket:
            frame = Tab(socket, self._port)
            root = frame.call("DOM.getDocument")["root"]["nodeId"]
            return str(frame.call("DOM.getOuterHTML", nodeId=root)["outerHTML"])

    def forget_login(self) -> None:
        self.call("Network.clearBrowserCookies")
