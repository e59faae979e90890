"""What every answer carries and every change needs: headers that keep scripts out, and proof that our own page is asking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from airflow.configuration import conf
from fastapi import HTTPException, Request, Response, status

# A form of another site can send neither this header nor JSON.
HEADER = "x-reprise"
LARGEST_BODY = 10_000

PAGE_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'self'; object-src 'none'"
)
# A report is a page of its own that runs nothing, fetches nothing and belongs to nobody's origin.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; base-uri 'none'"


async def with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return secured(await call_next(request))


def secured(response: Response) -> Response:
    response.headers.setdefault("Content-Security-Policy", PAGE_POLICY)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def from_our_page(request: Request) -> None:
    """A cookie is sent whoever asks. So a change needs what only our own page can send."""
    kind = request.headers.get("content-type", "").split(";")[0].strip()
    if kind != "application/json" or request.headers.get(HEADER) != "1":
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"Nothing was started: a request needs a JSON body and the header '{HEADER}: 1'."
        )
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc not in _hosts(request)):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "Nothing was started: the request comes from another site.")
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > LARGEST_BODY:
        raise HTTPException(
            status.HTTP_413_CONTENT_TOO_LARGE,
            f"Nothing was started: a request says how long it is, at most {LARGEST_BODY:,} bytes.",
        )


def _hosts(request: Request) -> set[str]:
    """How this Airflow is called, also behind a proxy."""
    return {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc} - {""}
