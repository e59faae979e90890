"""Storage faults: cut off, flip a bit in, or delete a file of a table; a full disk; folders that cannot be written.

What is damaged is kept beside, so that it can be put back once somebody has noticed, as a person on call would from a
backup.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_jobs.lake.tables import Lake, file_names

_TABLES = {"events": "event_log", "output": "complex_events", "savepoint": "savepoints", "commit": "complex_events"}
_UNLIMITED = resource.RLIM_INFINITY
_INPUTS = ("change_schema", "poison_rows")


def target_of(lake: Lake, kind: str) -> Path | None:
    """The newest file that a fault such as `flip_events` means; None if there is none yet."""
    what = kind.partition("_")[2]
    folder = Path(lake.path(_TABLES[what]))
    if what == "commit":
        files = list(folder.glob("_delta_log/*.json"))
        return max(files, default=None)
    try:
        files = [file for name in file_names(DeltaTable(str(folder))) if (file := folder / name).exists()]
    except (DeltaError, OSError):
        return None
    return max(files, key=lambda file: (file.stat().st_mtime_ns, file.stat().st_size), default=None)


def damage(lake: Lake, kind: str, target: Path, seed: str) -> None:
    """Spoil a file; which bit is flipped follows from the seed."""
    how = kind.partition("_")[0]
    content = target.read_bytes()
    _keep(lake, {"kind": kind, "path": str(target), "deleted": how == "delete"}, content)
    if how == "delete":
        target.unlink()
        return
    _replace(target, content[: len(content) // 2] if how == "truncate" else _flipped(content, seed))


def _flipped(content: bytes, seed: str) -> bytes:
    drawn = random.Random(seed)  # noqa: S311  # to be repeated, not to be secret
    spoiled = bytearray(content)
    spoiled[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    return bytes(spoiled)


def keep(lake: Lake, kind: str, target: Path) -> None:
    """Keep a file that somebody is about to spoil, so that it can be put back."""
    _keep(lake, {"kind": kind, "path": str(target), "deleted": False}, target.read_bytes())


def fill_disk() -> None:
    """No file of this process can grow any more; what it has open neither."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def can_be_read_only(lake: Lake) -> bool:
    """Are there folders of output or savepoints, and does the file system let itself be told so?"""
    if not _written_folders(lake):
        return False
    probe = _kept(lake) / "probe"
    probe.mkdir(parents=True, exist_ok=True)
    return _set_writable(probe, writable=False) and _set_writable(probe, writable=True)


def make_read_only(lake: Lake) -> None:
    """Nobody can create a file in the folders of the output and the savepoints."""
    folders = _written_folders(lake)
    _keep(lake, {"folders": [str(folder) for folder in folders]}, b"")
    for folder in folders:
        _set_writable(folder, writable=False)


def _written_folders(lake: Lake) -> list[Path]:
    folders = [Path(lake.path(table)) / sub for table in ("complex_events", "savepoints") for sub in ("", "_delta_log")]
    return [folder for folder in folders if folder.is_dir()]


def _set_writable(folder: Path, *, writable: bool) -> bool:
    if os.geteuid():
        folder.chmod(0o755 if writable else 0o555)
        return True
    # Modes do not bind root; the immutable flag does, where the file system knows it.
    flag = "-i" if writable else "+i"
    return subprocess.run(["chattr", flag, str(folder)], check=False, capture_output=True).returncode == 0


def heal(lake: Lake, *, inputs: bool = True, files: bool = True) -> list[str]:
    """Put everything back; what was done. A sender repairs his `inputs` only once somebody has refused them, and damaged
    `files` come back from a backup only once somebody has met the damage."""
    done = []
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_UNLIMITED, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        done.append("made room on the disk")
    for note in sorted(_kept(lake).glob("*.json"), reverse=True):  # what was damaged twice was whole before the first time
        said = json.loads(note.read_text())
        wanted = inputs if said.get("kind") in _INPUTS else files or "folders" in said
        if not wanted:
            continue
        done += _restored(said, note.with_suffix(".bytes"))
        shutil.move(note, note.with_suffix(".healed"))
    return done


def hurt(lake: Lake) -> bool:
    """Is there something to be healed?"""
    return any(_kept(lake).glob("*.json")) or resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 0


@dataclass(frozen=True)
class Wound:
    """A file that is damaged."""

    path: Path
    content: bytes | None  # None: it is gone

    @contextmanager
    def open(self) -> Iterator[None]:
        """Damage a file that was put back once more, for a while."""
        whole = self.path.read_bytes()
        if self.content is None:
            self.path.unlink()
        else:
            _replace(self.path, self.content)
        try:
            yield
        finally:
            _replace(self.path, whole)


def unmet(lake: Lake) -> list[Wound]:
    """Damaged files of log, output and commits that were not put back: nobody has met the damage, or nobody needed the file."""
    notes = [json.loads(note.read_text()) for note in sorted(_kept(lake).glob("*.json"))]
    kinds = ("_events", "_output", "_commit")
    paths = dict.fromkeys(Path(note["path"]) for note in notes if note.get("kind", "").endswith(kinds))
    return [Wound(path, path.read_bytes() if path.exists() else None) for path in paths]


def _restored(note: dict[str, Any], kept: Path) -> list[str]:
    if "folders" in note:
        for folder in note["folders"]:
            _set_writable(Path(folder), writable=True)
        return ["made the folders of the tables writable"]
    path = Path(note["path"])
    if note["deleted"] and path.exists():
        return []  # somebody has made it anew meanwhile
    _replace(path, kept.read_bytes())
    return [f"put {path.name} back"]


def _replace(path: Path, content: bytes) -> None:
    """Never in place: a process that has the file mapped would die of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def _keep(lake: Lake, note: dict[str, Any], content: bytes) -> None:
    folder = _kept(lake)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{len(list(folder.glob('*.bytes'))) + 1:04}"
    (folder / f"{name}.bytes").write_bytes(content)
    (folder / f"{name}.json").write_text(json.dumps(note))


def _kept(lake: Lake) -> Path:
    return lake.root / "_faults" / "kept"
