"""The faults armed in one lake, and which of them have struck.

A plan lies in the lake it is meant for, and only a drill's own lake accepts one, or one whose pipeline file allows it. What
strikes is written down before it happens, so that the retry does not meet the same fault, and so that a fault that never
struck makes the drill unknown instead of passed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.errors import RepriseError
from spark_jobs.faults.fault import Fault
from spark_jobs.lake.tables import Lake

BY_PIPELINE = "the pipeline file allows faults in any lake"


@dataclass(frozen=True)
class Strike:
    """One fault that has struck: the how many-th time, when, and in which attempt."""

    fault: Fault
    time: int
    at: float
    attempt: int


class FaultPlan:
    """The faults armed in one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.folder = lake.root / "_faults"
        self._drill = lake.root / "_drill"

    def allow(self, why: str = "a drill's own lake") -> None:
        """Declare that faults may strike here; done by the drill that creates the lake."""
        self._drill.parent.mkdir(parents=True, exist_ok=True)
        self._drill.write_text(why)

    def forbid(self) -> None:
        self._drill.unlink(missing_ok=True)

    @property
    def why(self) -> str:
        """Why faults may strike here; empty if they may not."""
        return self._drill.read_text() if self.allowed else ""

    @property
    def allowed(self) -> bool:
        return self._drill.exists()

    def arm(self, fault: Fault) -> None:
        if not self.allowed:
            raise RepriseError(
                f"faults are refused in {self.lake.root}: it is not a drill's own lake. Use 'reprise drill', which makes a "
                "lake of its own, or write 'allow_faults_in_any_lake: true' into the pipeline file. Nothing was armed."
            )
        self.folder.mkdir(exist_ok=True)
        _write(self.folder / f"armed-{fault.name}.json", fault.as_dict())

    def waiting(self) -> list[Fault]:
        """Armed, and not struck as often as they should; none where none may be armed."""
        if not (self.folder.exists() and self.allowed):
            return []
        return [fault for fault in self._armed() if self._struck(fault) < fault.times]

    def take(self, fault: Fault, attempt: int) -> bool:
        """Write down that the fault strikes now. False if it has, as often as it should: of two processes one strikes."""
        for time_ in range(self._struck(fault) + 1, fault.times + 1):
            record = {"fault": fault.as_dict(), "time": time_, "at": time.time(), "attempt": attempt}
            try:
                _write(self.folder / f"fired-{fault.name}-{time_:02}.json", record, new=True)
            except FileExistsError:
                continue
            return True
        return False

    def armed(self) -> list[Fault]:
        """Each as often as it should strike."""
        return [fault for fault in self._armed() for _ in range(fault.times)]

    def fired(self) -> list[Fault]:
        """Each as often as it has struck."""
        return [strike.fault for strike in self.strikes()]

    def strikes(self) -> list[Strike]:
        found = [json.loads(file.read_text()) for file in self.folder.glob("fired-*.json")]
        strikes = [Strike(Fault(**f["fault"]), f["time"], f["at"], f["attempt"]) for f in found]
        return sorted(strikes, key=lambda strike: strike.at)

    def _armed(self) -> list[Fault]:
        return [Fault(**json.loads(file.read_text())) for file in sorted(self.folder.glob("armed-*.json"))]

    def _struck(self, fault: Fault) -> int:
        return sum(1 for _ in self.folder.glob(f"fired-{fault.name}-[0-9][0-9].json"))


def _write(file: Path, content: dict[str, Any], *, new: bool = False) -> None:
    with file.open("x" if new else "w") as out:
        json.dump(content, out)
        out.flush()
        os.fsync(out.fileno())
