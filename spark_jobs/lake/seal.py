"""Sealed files: the name of a Parquet file carries the checksum of its bytes, so that a flipped bit is found.

Whoever reads pages of a file has them checked page by page on the way (`CHECKED`); the seal also covers what lies between
the pages, and is looked at when a lake is verified.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Final, TypedDict

_CHUNK = 1 << 24


class _Checked(TypedDict):
    page_checksum_verification: bool


# For readers of Parquet: a page that does not fit its checksum is an error.
CHECKED: Final[_Checked] = {"page_checksum_verification": True}


def seal(path: str) -> str:
    """Put the checksum into the name of a file that was just written; the new path."""
    new = f"{path.removesuffix('.parquet')}.{_checksum(path)}.parquet"
    os.rename(path, new)
    return new


def sealed(path: str) -> str | None:
    """The checksum in the name of a file, if there is one."""
    named = re.search(r"\.([0-9a-f]{8})\.parquet$", path)
    return named[1] if named else None


def broken(path: str) -> str | None:
    """What is wrong with a sealed file; None if nothing is, or if it has no seal."""
    named = sealed(path)
    if not Path(path).exists():
        return "it is gone"
    if named and _checksum(path) != named:
        return "its bytes do not fit the checksum in its name"
    return None


def _checksum(path: str) -> str:
    crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return f"{crc:08x}"
