"""Tables that are looked at again and again.

Opening one of 100,000 files takes half a second, seeing what is new in it a millisecond.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from spark_jobs.lake.tables import Lake

_MOST = 32


@dataclass
class _Kept:
    handle: DeltaTable
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def looking_at(lake: Lake, table: str) -> Iterator[DeltaTable]:
    """A table as it is now. While one looks, nobody else moves it on: its numbers belong together."""
    kept = _kept_of(Path(lake.path(table)))
    with kept.lock:
        kept.handle.update_incremental()
        yield kept.handle


def _kept_of(path: Path) -> _Kept:
    """A table that was removed and made anew is another one, though its path is the same."""
    key = (path, (path / "_delta_log").stat().st_ino)
    with _guard:
        if key not in _all:
            _all[key] = _Kept(DeltaTable(str(path)))
        _all.move_to_end(key)
        while len(_all) > _MOST:
            _all.popitem(last=False)
        return _all[key]


_guard = threading.Lock()
_all: OrderedDict[tuple[Path, int], _Kept] = OrderedDict()
