"""Benchmarks, by the name `reprise bench` knows them. Each is loaded when it is run: one does not need what another does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from bench.bars import Bar


def _of(module: str, name: str = "") -> Callable[[str], list[Bar]]:
    """The function of that name, or of the module's own, in `bench.<module>`."""

    def run(master: str) -> list[Bar]:
        return cast(list[Bar], getattr(import_module(f"bench.{module}"), name or module)(master))

    return run


BENCHES: dict[str, Callable[[str], list[Bar]]] = {
    name: _of(name)
    for name in (
        "loop",
        "engine",
        "savepoints",
        "recovery",
        "verification",
        "drills",
        "disorder",
        "replication",
        "transactions",
        "peers",
        "scale",
        "memory",
    )
} | {"peers-recovery": _of("peers", "peers_recovery")}
