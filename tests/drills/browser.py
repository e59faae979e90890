"""What a browser would make of a page, without one: nothing may be fetched from anywhere."""

from __future__ import annotations

import re
from pathlib import Path


def checked_offline(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    fetched = re.findall(r"""(?:src|href)\s*=\s*["']?(?!#|file:)([^"'>\s]+)|url\(([^)]*)\)|@import""", text)
    assert not fetched, f"{page} would fetch {fetched}"
    return text
