"""What operators with shared state mean, from scratch at every event: no kernel, no chunk, no cell that anybody adds to."""

from __future__ import annotations

Event = tuple[str | None, int]  # the key, and the amount it moves
MASK = 2**64 - 1


def overdrawn(events: list[Event]) -> list[int]:
    """The places of withdrawals that the sum of what was carried out before does not cover."""
    declined: list[int] = []
    for place, (key, amount) in enumerate(events):
        carried_out = [a for i, (k, a) in enumerate(events[:place]) if k == key and i not in declined]
        if amount < 0 and sum(carried_out) + amount < 0:
            declined.append(place)
    return declined


def heavy(events: list[Event], threshold: int, width: int) -> list[int]:
    """The places at which an item is first estimated to have come `threshold` times."""
    cells = [cells_of(key, width) for key, _ in events]
    found: list[int] = []
    for place, mine in enumerate(cells):
        estimate = min(sum(other[row] == cell for other in cells[: place + 1]) for row, cell in enumerate(mine))
        known = all(any(cells[other][row] == cell for other in found) for row, cell in enumerate(mine))
        if estimate >= threshold and not known:
            found.append(place)
    return found


def cells_of(key: str | None, width: int) -> list[int]:
    """FNV-1a, then splitmix64 for each of four rows."""
    h = 0xCBF29CE484222325
    for byte in (key or "").encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    if key is None:
        h ^= MASK
    cells = []
    for row in range(1, 5):
        z = (h + row * 0x9E3779B97F4A7C15) & MASK
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        cells.append((z ^ (z >> 31)) % width)
    return cells
