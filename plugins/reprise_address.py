"""Where the Reprise page is, for who leads there: its entry in the navigation, and the links of tasks."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.sdk.configuration import conf

PREFIX = "/reprise"


def address(path: str) -> str:
    """Below the path that Airflow itself is served from."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PREFIX + path
