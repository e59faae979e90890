"""Benchmarks, by the name `reprise bench` knows them."""

from __future__ import annotations

from collections.abc import Callable

from bench.bars import Bar
from bench.loop import loop

BENCHES: dict[str, Callable[[str], list[Bar]]] = {"loop": loop}
