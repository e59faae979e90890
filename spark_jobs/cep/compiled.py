"""How kernels are compiled: once per host and version of their sources, then loaded from a cache beside them.

numba notices a change of the file a kernel stands in, not of the files it calls into; the folder of the cache is
therefore named after all sources that kernels share.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_HERE = Path(__file__).parent


# What kernels in other files are made of: functions they call, constants, and the tuples of arrays they are given.
_SHARED = (
    "arrays",
    "automaton",
    "bytecode",
    "compiled",
    "kernel",
    "run_matches",
    "run_state",
    "run_steps",
    "run_windows",
    "runs",
)


def _cache_folder() -> Path:
    sources = b"".join((_HERE / f"{name}.py").read_bytes() for name in _SHARED)
    return _HERE / "__pycache__" / f"kernels-{hashlib.sha256(sources).hexdigest()[:12]}"


# A cache somebody has chosen is theirs; where ours cannot be written, numba finds a place of its own.
if "NUMBA_CACHE_DIR" not in os.environ and os.access(_HERE, os.W_OK):
    numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]  # its attributes come from the environment


def allocating(function: Function) -> Function:
    """For kernels that make arrays."""
    return _kernel(function)


def compiled(function: Function) -> Function:
    """For what makes no arrays: numba need not count references then. With some twenty arrays per call, the atomic counters
    would cost ten times as much as a predicate."""
    return _kernel(function, _nrt=False)


def inlined(function: Function) -> Function:
    """.. and is so short that a call costs more than what it does."""
    return _kernel(function, _nrt=False, forceinline=True)


def _kernel(function: Function, **options: bool) -> Function:
    decorate: Any = numba.njit
    return cast("Function", decorate(cache=True, error_model="numpy", **options)(function))
