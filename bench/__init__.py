"""Benchmarks, by the name `reprise bench` knows them."""

from __future__ import annotations

BENCHES = {}
