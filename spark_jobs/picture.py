"""The automaton as a picture: an SVG with a layout of its own, so that no drawing program has to be installed.

Occurrences stand in columns from left to right, alternatives below each other. Between two columns of occurrences lies
one for labels, in which every option has a place of its own: labels cannot overlap. An option that leads further
than the next column gets a free lane in all columns between, so it never runs through an occurrence; options that
mean the same from there on share the lane. Repetitions of one symbol are arcs above it, all others run below.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import jinja2

from spark_jobs.cep.automaton import NO_ACCEPT, Automaton, Option
from spark_jobs.cep.pattern import Alternatives, Connector, Excluded, Node, Permute, Repeat, Sequence, Symbol
from spark_jobs.errors import RepriseError

# A picture of more than this is wallpaper.
MAX_STATES = 120

_TEMPLATES = Path(__file__).parent / "templates"
_STYLE = {Connector.STRICT: "strict", Connector.NEXT: "next", Connector.ANY: "any"}
_LEGEND = {
    "strict": "the very next row",
    "next": "the next row that fits",
    "any": "any later row that fits",
}

# Pixels. A letter of the fixed-width font is 0.6 of its size wide, in all such fonts.
_LETTER, _SMALL_LETTER = 8.5, 6.7
_BOX_HEIGHT, _LANE_HEIGHT, _BETWEEN = 42.0, 18.0, 10.0
_RUN = 26.0  # room for an edge to swing from one height to another
_CHANNEL = 11.0  # between two edges that go down side by side
_BEND = 6.0  # radius of a corner
_LOOP = 40.0  # height of an arc with its label
_MARGIN = 24.0
_NARROWEST = 420.0
# How much more than others the preferred edges and the lanes pull to be level.
_STRAIGHT = 200.0


def draw(automaton: Automaton, title: str, define: Mapping[str, str]) -> str:
    """The SVG. `title` stands above the drawing, the definitions of the symbols below it."""
    states = len(automaton.states)
    if states > MAX_STATES:
        raise RepriseError(
            f"the automaton has {states:,} states, more than the {MAX_STATES} that a picture can show; leave --svg out "
            "to read them as a list"
        )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["px"] = lambda value: f"{value:.1f}".removesuffix(".0")
    return environment.get_template("automaton.svg.j2").render(_Drawing(automaton).finished(title, define))


@dataclass(eq=False)
class _Place:
    """Something with a place in a column: a state, the label of an option, or a piece of a lane."""

    column: int
    state: int | None = None
    label: _Label | None = None
    style: str = ""
    up: float = _LANE_HEIGHT / 2
    down: float = _LANE_HEIGHT / 2
    width: float = 0.0
    x: float = 0.0  # its centre
    y: float = 0.0


@dataclass(frozen=True)
class _Label:
    """What is written on an edge: the place in the order of preference where there are several, and negations."""

    preference: str
    negated: str

    @property
    def width(self) -> float:
        return (18.0 if self.preference else 0.0) + len(self.negated) * _SMALL_LETTER + (6.0 if self.negated else 0.0)


@dataclass(frozen=True)
class _Edge:
    source: int
    option: Option
    label: _Label
    first: bool  # the most preferred one: it is drawn as straight as possible

    @property
    def style(self) -> str:
        return _STYLE[self.option.connector] if self.source else "begin"


@dataclass(eq=False)
class _Segment:
    """A piece of an edge between two neighbouring columns."""

    left: _Place
    right: _Place
    style: str
    weight: float


@dataclass
class _Column:
    places: list[_Place] = field(default_factory=list)
    left: float = 0.0
    right: float = 0.0
    entries: dict[tuple[int, str], float] = field(default_factory=dict)  # x of edges that come up into a state
    exits: dict[tuple[int, str], float] = field(default_factory=dict)  # .. and of those that go down from one


class _Drawing:
    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        steps: list[int] = []
        last = _occurrences(automaton.pattern.root, 1, steps)
        self.column_of = [0, *steps]
        # Even columns hold states, odd ones labels.
        self.columns = [_Column() for _ in range(2 * last - 1)]
        self.edges = list(_edges(automaton))
        self.loops = [e for e in self.edges if e.option.state == e.source]
        self.back = [e for e in self.edges if e not in self.loops and not self._leads_on(e)]
        self.states = [self._state(number) for number in range(len(automaton.states))]
        self.segments: list[_Segment] = []
        self._connect()
        self._order()
        self._place_across()
        self._place_down()

    def _leads_on(self, edge: _Edge) -> bool:
        return self.column_of[edge.option.state] > self.column_of[edge.source]

    def _state(self, number: int) -> _Place:
        state = self.automaton.states[number]
        place = _Place(2 * self.column_of[number], state=number)
        place.width = max(46.0, len(state.symbol or "") * _LETTER + 24.0) if number else 18.0
        place.up = place.down = _BOX_HEIGHT / 2 if number else 12.0
        own = [edge for edge in self.loops if edge.source == number]
        if own:
            place.up += _LOOP * len(own)
            place.width = max(place.width, *(edge.label.width + 16.0 for edge in own))
        caption = self._caption(number)
        if caption:
            place.down += 16.0
            place.width = max(place.width, len(caption) * _SMALL_LETTER)
        self._add(place)
        return place

    def _caption(self, number: int) -> str:
        """How the pattern may end here, or begin."""
        pattern, state = self.automaton.pattern, self.automaton.states[number]
        if number == 0:
            return "first row" if pattern.at_start else ""
        if state.accept == NO_ACCEPT:
            return ""
        words = [f"{state.accept + 1}. end"] if state.options else []
        words += ["last row"] if pattern.at_end else []
        words += [f"then no {symbol}" for symbol in pattern.never_after]
        return ", ".join(words)

    def _add(self, place: _Place) -> _Place:
        self.columns[place.column].places.append(place)
        return place

    def _connect(self) -> None:
        """Labels and lanes for everything that leads on."""
        lanes: dict[tuple[int, str, frozenset[str], int], _Place] = {}
        joined: set[tuple[_Place, _Place]] = set()
        for edge in self.edges:
            if edge in self.loops or edge in self.back:
                continue
            source, target = self.states[edge.source], self.states[edge.option.state]
            here = self._add(_Place(source.column + 1, label=edge.label, style=edge.style, width=edge.label.width))
            self.segments.append(_Segment(source, here, edge.style, _STRAIGHT if edge.first else 1.0))
            for column in range(here.column + 1, target.column):
                lane = (edge.option.state, edge.style, edge.option.negated, column)
                if lane not in lanes:
                    lanes[lane] = self._add(_Place(column, style=edge.style))
                if (here, lanes[lane]) not in joined:
                    joined.add((here, lanes[lane]))
                    self.segments.append(_Segment(here, lanes[lane], edge.style, _STRAIGHT / 20 if here.label is None else 0.5))
                here = lanes[lane]
            if (here, target) not in joined:
                joined.add((here, target))
                self.segments.append(_Segment(here, target, edge.style, _STRAIGHT if edge.first else 1.0))

    def _order(self) -> None:
        """Who stands above whom: as few crossings as some sweeps to and fro find, the preferred above."""
        left: dict[_Place, list[_Place]] = defaultdict(list)
        right: dict[_Place, list[_Place]] = defaultdict(list)
        for segment in self.segments:
            left[segment.right].append(segment.left)
            right[segment.left].append(segment.right)
        for column in self.columns[1:]:
            self._sort(column, left, min)
        best, fewest = self._snapshot(), self._crossings()
        for sweep in range(12):
            if fewest == 0:
                break
            down = sweep % 2 == 0
            for column in self.columns[1:] if down else self.columns[-2::-1]:
                self._sort(column, left if down else right, lambda ranks: sum(ranks) / len(ranks))
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = self._snapshot(), crossings
        for column, places in zip(self.columns, best, strict=True):
            column.places = places

    def _snapshot(self) -> list[list[_Place]]:
        return [list(column.places) for column in self.columns]

    def _sort(self, column: _Column, beside: dict[_Place, list[_Place]], rank: Any) -> None:
        ranks = self._ranks()
        column.places.sort(key=lambda place: rank([ranks[p] for p in beside[place]]) if beside[place] else ranks[place])

    def _ranks(self) -> dict[_Place, int]:
        return {place: rank for column in self.columns for rank, place in enumerate(column.places)}

    def _crossings(self) -> int:
        ranks = self._ranks()
        between: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for segment in self.segments:
            between[segment.left.column].append((ranks[segment.left], ranks[segment.right]))
        count = 0
        for pairs in between.values():
            pairs.sort()
            for place, (a, b) in enumerate(pairs):
                count += sum(1 for c, d in pairs[place + 1 :] if c > a and d < b)
        return count

    def _place_across(self) -> None:
        x = _MARGIN
        for number, column in enumerate(self.columns):
            width = max((place.width for place in column.places), default=0.0)
            if number % 2 == 0:
                arrivals = {(e.option.state, e.style) for e in self.back if self._stands(e.option.state, number)}
                departures = {(e.source, e.style) for e in self.back if self._stands(e.source, number)}
                for key in sorted(arrivals):
                    column.entries[key] = x
                    x += _CHANNEL
                column.left, column.right = x, x + width
                x += width
                for key in sorted(departures):
                    x += _CHANNEL
                    column.exits[key] = x
            else:
                column.left, column.right = x + _RUN, x + _RUN + width
                x = column.right + _RUN
            for place in column.places:
                place.x = (column.left + column.right) / 2
        self.width = x + _MARGIN

    def _stands(self, state: int, column: int) -> bool:
        return 2 * self.column_of[state] == column

    def _place_down(self) -> None:
        """Heights: every place as near to its neighbours as those above and below it allow."""
        left: dict[_Place, list[tuple[_Place, float]]] = defaultdict(list)
        right: dict[_Place, list[tuple[_Place, float]]] = defaultdict(list)
        for segment in self.segments:
            left[segment.right].append((segment.left, segment.weight))
            right[segment.left].append((segment.right, segment.weight))
        for column in self.columns:
            y = 0.0
            for place in column.places:
                place.y = y + place.up
                y = place.y + place.down + _BETWEEN
        for sweep in range(21):
            forth = sweep % 2 == 0
            for column in self.columns if forth else reversed(self.columns):
                wanted, weights = [], []
                for place in column.places:
                    near = (left if forth else right)[place] or [(place, 1.0)]
                    weights.append(sum(weight for _, weight in near))
                    wanted.append(sum(other.y * weight for other, weight in near) / weights[-1])
                for place, y in zip(column.places, _spread(column.places, wanted, weights), strict=True):
                    place.y = y
        top = min(place.y - place.up for column in self.columns for place in column.places)
        for column in self.columns:
            for place in column.places:
                place.y -= top
        self.height = max(place.y + place.down for column in self.columns for place in column.places)

    def finished(self, title: str, define: Mapping[str, str]) -> dict[str, Any]:
        """Everything the template writes, in its final place."""
        width = max(self.width, _NARROWEST)
        letters = int((width - 2 * _MARGIN) / _SMALL_LETTER)
        heading = textwrap.wrap(title, int((width - 2 * _MARGIN) / _LETTER), subsequent_indent="  ") or [""]
        top = _MARGIN + 20.0 * len(heading) + 12.0
        for column in self.columns:
            for place in column.places:
                place.y += top
        lanes, lane_labels, bottom = self._lanes(top + self.height)
        styles = {edge.style for edge in self.edges if edge.source}
        shown = [(style, text) for style, text in _LEGEND.items() if style in styles]
        legend = [{"style": style, "text": text, "y": bottom + 30.0 + 18.0 * k} for k, (style, text) in enumerate(shown)]
        y = bottom + 30.0 + 18.0 * len(legend) + (8.0 if legend else 0.0)
        definitions = _definitions(self.automaton, define, y, letters)
        return {
            "title": title,
            "heading": [{"y": _MARGIN + 12.0 + 20.0 * k, "text": line} for k, line in enumerate(heading)],
            "margin": _MARGIN,
            "segments": [*self._curves(), *lanes, *self._arcs()],
            "arrows": [*self._arrow_heads()],
            "labels": [*self._labels(), *lane_labels],
            "states": [self._box(place, define) for place in self.states],
            "legend": legend,
            "definitions": definitions,
            "width": width,
            "height": definitions[-1]["y"] + _MARGIN,
        }

    def _lanes(self, bottom: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]], float]:
        """Edges that go back: down behind their source, along below everything, up before their target.

        Those that mean the same share a lane. Every piece is drawn once: dashes drawn twice would fill each other's gaps.
        """
        lanes: dict[tuple[int, str, _Label], list[_Edge]] = defaultdict(list)
        for edge in self.back:
            lanes[edge.option.state, edge.style, edge.label].append(edge)
        spans = []
        for (target, style, label), edges in lanes.items():
            exits = sorted(self.columns[self.states[e.source].column].exits[e.source, style] for e in edges)
            left = self.columns[self.states[target].column].entries[target, style]
            spans.append((exits[-1] - left, left, exits, target, style, label, edges))
        taken: list[list[tuple[float, float]]] = []
        pieces, labels = [], []
        deepest: dict[tuple[str, int, str], float] = {}
        for _, left, exits, target, style, label, edges in sorted(spans, key=lambda span: (span[0], span[3])):
            level = next((k for k, row in enumerate(taken) if all(exits[-1] < a or b < left for a, b in row)), len(taken))
            taken += [[]] if level == len(taken) else []
            taken[level].append((left - 4, exits[-1] + 4))
            y = bottom + 18.0 + 22.0 * level
            up = f"Q {left:.1f} {y:.1f} {left:.1f} {y - _BEND:.1f}"
            lane = [f"M {exits[-1] - _BEND:.1f} {y:.1f} L {left + _BEND:.1f} {y:.1f} {up}"]
            lane += [f"M {x:.1f} {y - _BEND:.1f} Q {x:.1f} {y:.1f} {x - _BEND:.1f} {y:.1f}" for x in exits]
            pieces.append({"path": " ".join(lane), "style": style})
            # Before the first edge joins, so that the label is that of all.
            labels.append(_label(label, max((left + exits[0]) / 2, exits[0] - 14.0 - label.width / 2), y))
            for way, state in [("up", target), *(("down", edge.source) for edge in edges)]:
                deepest[way, state, style] = max(y - _BEND, deepest.get((way, state, style), 0.0))
        for (way, number, style), y in deepest.items():
            place, column = self.states[number], self.columns[self.states[number].column]
            side = 1 if way == "down" else -1
            x = (column.exits if way == "down" else column.entries)[number, style]
            at = place.y + 11.0
            begin = place.x + side * (self._half(place) + (5.0 if way == "up" else 0.0))
            turn = f"L {x - side * _BEND:.1f} {at:.1f} Q {x:.1f} {at:.1f} {x:.1f} {at + _BEND:.1f} L {x:.1f} {y:.1f}"
            pieces.append({"path": f"M {begin:.1f} {at:.1f} {turn}", "style": style})
        return pieces, labels, bottom + 18.0 + 22.0 * (len(taken) - 1) if taken else bottom

    def _curves(self) -> list[dict[str, Any]]:
        """Edges that lead on: a swing between two columns, and straight through the column of a label or lane."""
        drawn = []
        for segment in self.segments:
            left, right = segment.left, segment.right
            begin, end = self.columns[left.column].right, self.columns[right.column].left
            middle = (begin + end) / 2
            path = f"M {begin:.1f} {left.y:.1f} C {middle:.1f} {left.y:.1f} {middle:.1f} {right.y:.1f} {end:.1f} {right.y:.1f}"
            if left.state is not None:
                path = path.replace("M", f"M {left.x + self._half(left):.1f} {left.y:.1f} L", 1)
            if right.state is not None:
                path += f" L {right.x - self._half(right) - 5:.1f} {right.y:.1f}"
            drawn.append({"path": path, "style": segment.style})
        for column in self.columns:
            for place in column.places:
                if place.state is None and column.right > column.left:
                    across = f"M {column.left:.1f} {place.y:.1f} L {column.right:.1f} {place.y:.1f}"
                    drawn.append({"path": across, "style": place.style})
        return drawn

    def _half(self, place: _Place) -> float:
        if place.state == 0:
            return 8.0
        symbol = self.automaton.states[place.state or 0].symbol or ""
        return max(46.0, len(symbol) * _LETTER + 24.0) / 2

    def _arcs(self) -> list[dict[str, Any]]:
        drawn = []
        for edge, place, at in self._loop_places():
            begin, end = f"{place.x + 14:.1f} {place.y - 21:.1f}", f"{place.x - 14:.1f} {place.y - 27:.1f}"
            aims = f"{place.x + 30:.1f} {at:.1f} {place.x - 30:.1f} {at:.1f}"
            drawn.append({"path": f"M {begin} C {aims} {end}", "style": edge.style})
        return drawn

    def _loop_places(self) -> list[tuple[_Edge, _Place, float]]:
        """Every arc with its state and the height that its curve aims at."""
        seen: dict[int, int] = defaultdict(int)
        found = []
        for edge in self.loops:
            place = self.states[edge.source]
            found.append((edge, place, place.y - 21.0 - 37.0 - _LOOP * 1.2 * seen[edge.source]))
            seen[edge.source] += 1
        return found

    def _labels(self) -> list[dict[str, Any]]:
        written = [_label(p.label, p.x, p.y) for column in self.columns for p in column.places if p.label]
        for edge, p, at in self._loop_places():
            # The curve of an arc reaches three quarters of the way to the points it aims at.
            written.append(_label(edge.label, p.x, p.y - 22.0 + 0.75 * (at - p.y + 22.0)))
        return written

    def _arrow_heads(self) -> list[str]:
        points = {(s.right.x - self._half(s.right), s.right.y) for s in self.segments if s.right.state is not None}
        points |= {
            (target.x - self._half(target), target.y + 11) for target in (self.states[e.option.state] for e in self.back)
        }
        heads = [f"{x:.1f},{y:.1f} {x - 8:.1f},{y - 4:.1f} {x - 8:.1f},{y + 4:.1f}" for x, y in sorted(points)]
        for _, place, _ in self._loop_places():
            x, y = place.x - 13.5, place.y - 21.0
            heads.append(f"{x:.1f},{y:.1f} {x - 5.5:.1f},{y - 7.5:.1f} {x + 3:.1f},{y - 8.5:.1f}")
        return heads

    def _box(self, place: _Place, define: Mapping[str, str]) -> dict[str, Any]:
        number = place.state or 0
        state = self.automaton.states[number]
        half = self._half(place)
        return {
            "number": number,
            "symbol": state.symbol,
            "hint": define.get(state.symbol or "", "fits every row") if number else "start",
            "x": place.x,
            "y": place.y,
            "left": place.x - half,
            "top": place.y - _BOX_HEIGHT / 2,
            "width": 2 * half,
            "height": _BOX_HEIGHT,
            "accept": state.accept != NO_ACCEPT,
            "excluded": state.excluded,
            "caption": self._caption(number),
            "caption_y": place.y + (_BOX_HEIGHT / 2 + 14.0 if number else 24.0),
        }


def _occurrences(node: Node, at: int, columns: list[int]) -> int:
    """Append the column of every occurrence below `node`, in the automaton's order; the first column after them."""
    match node:
        case Symbol():
            columns.append(at)
            return at + 1
        case Sequence(items):
            return _chain([item.node for item in items], at, columns)
        case Alternatives(options):
            return max(_occurrences(option, at, columns) for option in options)
        case Permute(items):
            return max(_chain(list(order), at, columns) for order in permutations(items))
        case Repeat(below, low, high, _):
            return _chain([below] * (high or max(low, 1)), at, columns)
        case Excluded(below):
            return _occurrences(below, at, columns)


def _chain(nodes: list[Node], at: int, columns: list[int]) -> int:
    for node in nodes:
        at = _occurrences(node, at, columns)
    return at


def _edges(automaton: Automaton) -> list[_Edge]:
    found = []
    for source, state in enumerate(automaton.states):
        several = len(state.options) + (state.accept != NO_ACCEPT) > 1
        for place, option in enumerate(state.options):
            # Accept has a place in the order too.
            number = place + 1 + (state.accept != NO_ACCEPT and place >= state.accept)
            negated = ", ".join(f"no {symbol}" for symbol in sorted(option.negated))
            found.append(_Edge(source, option, _Label(str(number) if several else "", negated), place == 0))
    return found


def _spread(places: list[_Place], wanted: list[float], weights: list[float]) -> list[float]:
    """The heights nearest to the wanted ones (least squares) that keep the order and the distances: pool adjacent violators."""
    offsets = [0.0]
    for above, below in pairwise(places):
        offsets.append(offsets[-1] + above.down + below.up + _BETWEEN)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, how many
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, total, count = want - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, others, members = blocks.pop()
            mean = (mean * total + other * others) / (total + others)
            total, count = total + others, count + members
        blocks.append((mean, total, count))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


def _label(label: _Label, x: float, y: float) -> dict[str, Any]:
    left = x - label.width / 2
    return {
        "preference": label.preference,
        "circle": left + 9.0,
        "negated": label.negated,
        "text": left + (21.0 if label.preference else 3.0),
        "y": y,
        "left": left,
        "width": label.width,
    }


def _definitions(automaton: Automaton, define: Mapping[str, str], y: float, letters: int) -> list[dict[str, Any]]:
    """One or more lines per symbol; the symbol stands on the first one."""
    indent = max(len(symbol) for symbol in automaton.pattern.symbols) + 2
    lines: list[dict[str, Any]] = []
    for symbol in automaton.pattern.symbols:
        text = " ".join(define.get(symbol, "fits every row").split())
        for place, line in enumerate(textwrap.wrap(text, max(20, letters - indent)) or [""]):
            at = y + 17.0 * len(lines)
            lines.append({"symbol": "" if place else symbol, "text": line, "y": at, "indent": indent * _SMALL_LETTER})
    return lines
