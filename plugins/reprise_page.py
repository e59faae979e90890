"""The Reprise page in Airflow's navigation. Every process of Airflow loads this file, so it loads nothing itself."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from airflow.plugins_manager import AirflowPlugin
from reprise_address import PREFIX, address


class PageApp:
    """The page, made when somebody asks for it: schedulers and tasks never do."""

    _app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:  # its imports take a second, in which others want to be answered
            self._app = await asyncio.to_thread(_made)
        await self._app(scope, receive, send)


@cache
def _made() -> Any:
    from reprise_page_app.app import make_app

    return make_app()


class ReprisePage(AirflowPlugin):
    name = "reprise"
    fastapi_apps = [{"app": PageApp(), "url_prefix": PREFIX, "name": "Reprise"}]  # noqa: RUF012  # Airflow's own form
    external_views = [  # noqa: RUF012
        {
            "name": "Reprise",
            "href": address("/"),
            "destination": "nav",
            "url_route": "reprise",
            "icon": address("/static/icon.svg"),
            "icon_dark_mode": address("/static/icon-dark.svg"),
            "nav_top_level": True,
        }
    ]
