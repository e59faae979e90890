"""MATCH_RECOGNIZE in SQL: the clause is cut out and read into a Query, the SQL around it is left to Spark.

The clause has tokens of its own, read here: `"x"` and `` `x` `` are names, `'x'` is text with `''` for a quote, comments
are white space. sqlglot's tokenizers know one of the two quotings each and read template marks (`{%`, `{{`) that a
PATTERN may contain. Clauses are told apart by their first two words, so columns may be called `pattern` or `window`;
a name that stands where a clause could begin has to be quoted. Names and symbols keep their case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from spark_jobs.cep.operator import AfterMatch
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.query import Order, Query, placed_error
from spark_jobs.cep.windows import Window
from spark_jobs.cep.words import LARGEST_COUNT, interval, interval_text
from spark_jobs.errors import ExpressionError, suggest

T = TypeVar("T")

# Longer texts are generated; the bound keeps a hostile one from holding up a service.
MAX_SQL = 200_000

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)|(?P<word>[^\W\d]\w*)|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"""
    r"""|(?P<string>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)|(?P<mark>->>|->|<>|!=|<=|>=|\|\||.)""",
    re.DOTALL,
)
# Around the clause Spark's rules hold: both quotes are text, with backslashes.
_OUTER = re.compile(
    r"""\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<quoted>`(?:[^`]|``)+`)"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<mark>.)""",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^\W\d]\w*")
# What the first words of each clause are, after the standard; "(" and a word in capitals are looked for as they are.
_CLAUSES: dict[str, tuple[tuple[str, ...], ...]] = {
    "PARTITION BY": (("PARTITION", "BY"),),
    "ORDER BY": (("ORDER", "BY"),),
    "MEASURES": (("MEASURES",),),
    "ROWS PER MATCH": (("ONE", "ROW"), ("ALL", "ROWS")),
    "AFTER MATCH SKIP": (("AFTER", "MATCH"),),
    "ALL RUNS": (("ALL", "RUNS"),),
    "TIMED OUT": (("TIMED", "OUT"),),
    "WINDOW": (("WINDOW", "("),),
    "PATTERN": (("PATTERN", "("),),
    "WITHIN": (("WITHIN", "INTERVAL"),),
    "SUBSET": (("SUBSET",),),
    "DEFINE": (("DEFINE",),),
}
_FIRST_WORDS = sorted({words[0] for choices in _CLAUSES.values() for words in choices})
# Words that say how to go on; as names they have to be quoted.
_JOINING = (
    "AS",
    "AND",
    "OR",
    "NOT",
    "BY",
    "ASC",
    "DESC",
    "NULLS",
    "FIRST",
    "LAST",
    "IN",
    "IS",
    "LIKE",
    "BETWEEN",
    "CASE",
    "NULL",
)
# Words that may stand after a table in Spark's SQL; any other word there is the table's alias.
_AFTER_TABLE = re.compile(
    "WHERE|GROUP|HAVING|ORDER|SORT|CLUSTER|DISTRIBUTE|LIMIT|OFFSET|WINDOW|UNION|INTERSECT|EXCEPT|MINUS|JOIN|INNER|LEFT|RIGHT|"
    "FULL|OUTER|CROSS|SEMI|ANTI|NATURAL|LATERAL|ON|USING|PIVOT|UNPIVOT|TABLESAMPLE|SELECT|FROM",
    re.IGNORECASE,
)


def split_match_recognize(sql: str) -> tuple[str, Query]:
    """The SQL around the clause, with `{matches}` for the table and other braces doubled; and what the clause says."""
    if len(sql) > MAX_SQL:
        raise ExpressionError(f"the SQL text has {len(sql):,} characters; {MAX_SQL:,} are possible", MAX_SQL + 1)
    name_begin, after_word, name = _find_clause(sql)
    opening, closing, tokens = _inside(sql, after_word)
    alias, end = _alias_after(sql, closing, name)
    named = re.search(rf"\b{re.escape(name)}\s+AS\s*\(", sql[:name_begin], re.IGNORECASE)
    if named:
        raise placed_error(
            f"'{name}' is made by WITH in this text, but matches are looked for in the DataFrame that is given; "
            "run the WITH query on its own and match its DataFrame",
            sql,
            named.start() + 1,
        )
    again = next((m for m in _OUTER.finditer(sql, end) if (m["word"] or "").upper() == "MATCH_RECOGNIZE"), None)
    if again:
        raise placed_error("one MATCH_RECOGNIZE per query is possible; join the results of two", sql, again.start() + 1)
    query = _Clauses(sql, tokens, opening).query()
    before, after = (part.replace("{", "{{").replace("}", "}}") for part in (sql[:name_begin], sql[end:]))
    return f"{before}{{matches}} AS {_name_text(alias, spark=True)}{after}", query


def to_sql(query: Query, table: str) -> str:
    """The query as SQL; reading it again gives an equal query."""
    lines = [f"SELECT * FROM {table} MATCH_RECOGNIZE ("]  # noqa: S608  # printed for people; running it is up to them
    if query.partition_by:
        lines.append("  PARTITION BY " + ", ".join(map(_name_text, query.partition_by)))
    if query.order_by:
        lines.append("  ORDER BY " + ", ".join(map(_order_text, query.order_by)))
    if query.measures:
        lines.append("  MEASURES " + ", ".join(f"{text} AS {_name_text(name)}" for name, text in query.measures.items()))
    if query.all_rows:
        empty = " WITH UNMATCHED ROWS" if query.unmatched else "" if query.empty else " OMIT EMPTY MATCHES"
        lines.append(f"  ALL ROWS PER MATCH{empty}")
    if query.after_match != AfterMatch():
        symbol = f" {query.after_match.symbol}" if query.after_match.symbol else ""
        lines.append(f"  AFTER MATCH SKIP {query.after_match.kind.upper()}{symbol}")
    lines += ["  ALL RUNS"] if query.all_runs else []
    lines += ["  TIMED OUT"] if query.timed_out else []
    lines += [f"  WINDOW ({_window_text(query.window)})"] if query.window.kind != "none" else []
    within = f" WITHIN {interval_text(query.within)}" if query.within else ""
    steps = f" WITHIN {interval_text(query.within_steps)} BETWEEN STEPS" if query.within_steps else ""
    lines.append(f"  PATTERN ({query.pattern.text}){within}{steps}")
    if query.subsets:
        lines.append("  SUBSET " + ", ".join(f"{name} = ({', '.join(members)})" for name, members in query.subsets.items()))
    if query.define:
        lines.append("  DEFINE " + ", ".join(f"{symbol} AS {text}" for symbol, text in query.define.items()))
    return "\n".join(lines) + "\n)"


def fragment(text: str) -> str:
    """The text of an expression as the clause would give it; refused if it would not stay one piece there."""
    tokens = _tokens(text, 0, len(text))
    if not tokens:
        raise ExpressionError("the text is empty", 1)
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.kind == "mark" and token.text in "'\"`":
            raise ExpressionError(f"the {token.text} is not closed", token.start + 1)
        if depth < 0 or (depth == 0 and token.text == ","):
            raise ExpressionError(f"'{token.text}' does not belong here", token.start + 1)
    if depth:
        raise ExpressionError("')' is missing", len(text) + 1)
    return _Reader(text, tokens, len(text)).text(0, len(tokens), "an expression")[0]


def order_of(text: str) -> Order:
    """`amount DESC NULLS LAST` as the builder takes it."""
    reader = _Reader(text, _tokens(text, 0, len(text)), len(text))
    order = reader.order()
    if reader.place < len(reader.tokens):
        raise reader.unexpected(["ASC", "DESC", "NULLS"])
    return order


def _name_text(name: str, spark: bool = False) -> str:
    if _PLAIN.fullmatch(name) and name.upper() not in (*_FIRST_WORDS, *_JOINING):
        return name
    return "`" + name.replace("`", "``") + "`" if spark else '"' + name.replace('"', '""') + '"'


def _order_text(order: Order) -> str:
    nulls = "" if order.nulls_first != order.descending else f" NULLS {'FIRST' if order.nulls_first else 'LAST'}"
    return f"{_name_text(order.column)}{' DESC' if order.descending else ''}{nulls}"


def _window_text(window: Window) -> str:
    if window.kind == "opened":
        close = f" CLOSE WHEN {window.close_when}" if window.close_when is not None else ""
        return f"OPEN WHEN {window.open_when}{close} FOR " + (
            f"{window.size} ROWS" if window.by_rows else interval_text(window.size)
        )
    if window.kind == "time":
        return f"RANGE {interval_text(window.size)} SLIDE {interval_text(window.slide)}"
    return f"ROWS {window.size} SLIDE {window.slide}" + (" PER KEY" if window.kind == "keyed" else "")


def _find_clause(sql: str) -> tuple[int, int, str]:
    """Where the table before MATCH_RECOGNIZE begins, where that word ends, and the last part of the table's name."""
    tokens: list[_Token] = []
    for found in _OUTER.finditer(sql):
        kind = found.lastgroup
        if kind is None:
            continue
        if kind == "word" and found.group().upper() == "MATCH_RECOGNIZE":
            begin, name = _table_before(sql, tokens, found.start())
            return begin, found.end(), name
        tokens.append(_Token(kind, found.group(), found.start()))
    for token in tokens:
        if token.word.startswith("MATCH") and suggest(token.word, ["MATCH_RECOGNIZE"]).startswith("; did"):
            raise placed_error(f"unknown word '{token.text}'; did you mean 'MATCH_RECOGNIZE'?", sql, token.start + 1)
    raise placed_error("there is no MATCH_RECOGNIZE (...) in the text", sql, 1)


def _table_before(sql: str, tokens: list[_Token], end: int) -> tuple[int, str]:
    place = len(tokens)
    while place and tokens[place - 1].name is not None and tokens[place - 1].word not in ("FROM", "JOIN"):
        place -= 1
        if not (place and tokens[place - 1].text == "."):
            break
        place -= 1
    if place == len(tokens):
        message = "the name of a table is needed before MATCH_RECOGNIZE; for a subquery, match its DataFrame"
        raise placed_error(message, sql, end + 1)
    if not place or not (tokens[place - 1].word in ("FROM", "JOIN") or tokens[place - 1].text == ","):
        message = "write SELECT ... FROM name MATCH_RECOGNIZE (...); an alias stands after it"
        raise placed_error(message, sql, tokens[max(place - 1, 0)].start + 1)
    return tokens[place].start, _unquoted(tokens[-1].text)


def _alias_after(sql: str, start: int, table: str) -> tuple[str, int]:
    found = re.compile(r"\s*(?P<as>AS\s+)?(?P<name>[^\W\d]\w*|`(?:[^`]|``)+`)", re.IGNORECASE).match(sql, start)
    if found is None or (not found["as"] and _AFTER_TABLE.fullmatch(found["name"])):
        return table, start
    return _unquoted(found["name"]), found.end()


def _inside(sql: str, start: int) -> tuple[int, int, list[_Token]]:
    """Where the brackets of the clause open and where what follows them begins; the tokens between."""
    opening = re.compile(r"(?:\s|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*\(").match(sql, start)
    if opening is None:
        raise placed_error("'(' is missing after MATCH_RECOGNIZE", sql, start + 1)
    tokens: list[_Token] = []
    depth = 1
    for found in _TOKEN.finditer(sql, opening.end()):
        kind, text = found.lastgroup or "mark", found.group()
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth == 0:
            return opening.end(), found.end(), tokens
        if kind != "space":
            tokens.append(_Token(kind, text, found.start()))
    raise placed_error("')' is missing at the end of MATCH_RECOGNIZE", sql, opening.end())


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """A bare word in capitals; nothing for a quoted name, which is never a keyword."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str | None:
        return _unquoted(self.text) if self.kind in ("word", "quoted") else None


def _tokens(text: str, start: int, end: int) -> list[_Token]:
    found = _TOKEN.finditer(text, start, end)
    return [_Token(token.lastgroup or "mark", token.group(), token.start()) for token in found if token.lastgroup != "space"]


def _unquoted(text: str) -> str:
    if text[:1] in ('"', "`"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


class _Reader:
    """Reads tokens one after the other; errors name a character of the whole text."""

    def __init__(self, sql: str, tokens: Sequence[_Token], end: int) -> None:
        self.sql, self.tokens, self.end = sql, tokens, end
        self.place = 0

    @property
    def at(self) -> int:
        return self.tokens[self.place].start if self.place < len(self.tokens) else self.end

    def error(self, message: str, at: int | None = None) -> ExpressionError:
        return placed_error(message, self.sql, (self.at if at is None else at) + 1)

    def peek(self, ahead: int = 0) -> _Token:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else _Token("end", "", self.end)

    def next(self) -> _Token:
        token = self.peek()
        self.place += 1
        return token

    def skip(self, *words: str) -> bool:
        if all((self.peek(i).word or self.peek(i).text) == word for i, word in enumerate(words)):
            self.place += len(words)
            return True
        return False

    def expect(self, *words: str, known: Sequence[str] = ()) -> None:
        for word in words:
            if not self.skip(word):
                raise self.unexpected(known or [word])

    def unexpected(self, known: Sequence[str]) -> ExpressionError:
        token = self.peek()
        choices = " or ".join(f"'{word}'" for word in known)
        if token.kind == "end":
            return self.error(f"{choices} is missing")
        close = suggest(token.word, list(known)) if token.word else ""
        hint = close if close.startswith("; did") else f"; {choices} is needed here"
        return self.error(f"unexpected '{token.text}'{hint}")

    def name(self, what: str) -> str:
        name = self.peek().name
        if name is None:
            token = self.peek()
            raise self.error(f"{what} is missing" if token.kind == "end" else f"'{token.text}' where {what} is needed")
        self.place += 1
        return name

    def list_of(self, read: Callable[[], T]) -> list[T]:
        values = [read()]
        while self.skip(","):
            values.append(read())
        return values

    def order(self) -> Order:
        column = self.name("a column")
        descending = self.skip("DESC")
        if not descending:
            self.skip("ASC")
        nulls_first = not descending
        if self.skip("NULLS"):
            nulls_first = self.skip("FIRST")
            if not nulls_first:
                self.expect("LAST", known=["FIRST", "LAST"])
        return Order(column, descending, nulls_first)

    def interval(self) -> int:
        self.expect("INTERVAL")
        token = self.next()
        if token.kind not in ("string", "number"):
            raise self.error("INTERVAL needs a number, as in INTERVAL '10' MINUTES", token.start)
        number = token.text.strip("'").strip()
        unit = number.partition(" ")[2].strip() if token.kind == "string" else ""
        if not unit:
            unit_token = self.next()
            if unit_token.kind != "word":
                raise self.error("INTERVAL needs a unit, as in INTERVAL '10' MINUTES", unit_token.start)
            unit = unit_token.text
        if self.peek().word == "TO":
            raise self.error("write the interval in one unit")
        try:
            return interval(number.partition(" ")[0], unit)
        except ValueError as error:
            raise self.error(str(error), token.start) from None

    def count(self) -> int:
        token = self.next()
        if not (token.kind == "number" and token.text.isdecimal()):
            raise self.error("a number of rows is needed here", token.start)
        if len(token.text) > 20 or not 1 <= int(token.text) <= LARGEST_COUNT:
            raise self.error(f"'{token.text[:30]}' is not a possible number of rows", token.start)
        return int(token.text)

    def text(self, start: int, end: int, what: str) -> tuple[str, int]:
        """The text of the tokens [start, end) with comments blanked, and where it begins."""
        tokens = self.tokens[start:end]
        if not tokens:
            raise self.error(f"{what} is missing", self.tokens[start].start if start < len(self.tokens) else self.end)
        pieces, at = [], tokens[0].start
        for token in tokens:
            gap = self.sql[at : token.start]
            pieces.append(gap if gap.isspace() else " " * len(gap))
            # Expressions know double quotes only; a name without either quote in it keeps its length.
            quoted = token.kind == "quoted" and token.text[0] == "`"
            pieces.append(_double_quoted(token.text) if quoted else token.text)
            at = token.end
        return "".join(pieces), tokens[0].start


def _double_quoted(text: str) -> str:
    return '"' + _unquoted(text).replace('"', '""') + '"'


class _Clauses:
    """The clauses of one MATCH_RECOGNIZE, in any order, each at most once."""

    def __init__(self, sql: str, tokens: list[_Token], opening: int) -> None:
        self.sql, self.tokens, self.opening = sql, tokens, opening
        self.end = tokens[-1].end if tokens else opening
        self.said: dict[str, Any] = {}
        self.places: dict[str, int] = {}

    def query(self) -> Query:
        starts = self._starts()
        ends = [*(start for _, start in starts[1:]), len(self.tokens)]
        seen: set[str] = set()
        for (clause, start), end in zip(starts, ends, strict=False):
            if clause in seen and clause != "WITHIN":
                raise placed_error(f"{clause} is given twice", self.sql, self.tokens[start].start + 1)
            seen.add(clause)
            last = self.tokens[end].start if end < len(self.tokens) else self.end
            reader = _Reader(self.sql, self.tokens[start:end], last)
            _READ[clause](self, reader)
            if reader.place < len(reader.tokens):
                raise reader.unexpected(_FIRST_WORDS)
        if "pattern" not in self.said:
            raise self._no_pattern()
        return Query(**self.said, places=self.places, source=self.sql)

    def _no_pattern(self) -> ExpressionError:
        for token in self.tokens:
            if token.word not in ("PATTERN", "PARTITION") and suggest(token.word, ["PATTERN"]).startswith("; did"):
                return placed_error(f"unknown clause '{token.text}'; did you mean 'PATTERN'?", self.sql, token.start + 1)
        return placed_error("PATTERN (...) is missing", self.sql, self.opening)

    def _starts(self) -> list[tuple[str, int]]:
        """Where each clause begins."""
        found: list[tuple[str, int]] = []
        depth = 0
        for place, token in enumerate(self.tokens):
            clause = self._clause_at(place) if depth == 0 and token.kind == "word" else None
            if clause:
                found.append((clause, place))
            elif place == 0:
                known = suggest(token.word, _FIRST_WORDS) if token.word else ""
                raise placed_error(f"unknown clause '{token.text}'{known}", self.sql, token.start + 1)
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        return found

    def _clause_at(self, place: int) -> str | None:
        before = self.tokens[place - 1] if place else None
        if before is not None and (
            before.word in ("AS", "AND", "OR", "NOT", "BY") or (before.kind == "mark" and before.text not in (")", "]"))
        ):
            return None  # the clause of the token before has to go on
        words = [token.word or token.text for token in self.tokens[place : place + 3]]
        for clause, choices in _CLAUSES.items():
            if any(tuple(words[: len(choice)]) == choice for choice in choices) and (
                clause not in ("DEFINE", "SUBSET") or (len(words) == 3 and words[2] in ("AS", "="))
            ):
                return clause
        return None

    def _partition(self, reader: _Reader) -> None:
        reader.place = 2
        self.said["partition_by"] = tuple(reader.list_of(lambda: self._column(reader, "partition_by")))

    def _order(self, reader: _Reader) -> None:
        reader.place = 2

        def read() -> Order:
            at = reader.at
            order = reader.order()
            return self._once("order_by", order.column, at, order)

        self.said["order_by"] = tuple(reader.list_of(read))

    def _column(self, reader: _Reader, clause: str) -> str:
        at = reader.at
        name = reader.name("a column")
        self._once(clause, name, at, name)
        return name

    def _once(self, clause: str, name: str, at: int, value: T) -> T:
        if f"{clause}.{name}" in self.places:
            raise placed_error(f"'{name}' is given twice", self.sql, at + 1)
        self.places[f"{clause}.{name}"] = at
        return value

    def _measures(self, reader: _Reader) -> None:
        reader.place = 1
        measures: dict[str, str] = {}
        for start, end in _items(reader):
            named = [i for i in _top_level(reader, start, end) if reader.tokens[i].word == "AS"]
            if not named:
                at = reader.tokens[end - 1].end if end > start else reader.tokens[start - 1].end
                raise reader.error("a measure needs a name: write expression AS name", at)
            text, at = reader.text(start, named[-1], "an expression")
            reader.place = named[-1] + 1
            at_name = reader.at
            name = reader.name("a name")
            if reader.place < end:
                raise reader.unexpected(_FIRST_WORDS)
            self.places[f"measures.{name}"] = at
            measures[name] = self._once("measure", name, at_name, text)
        self.said["measures"] = measures

    def _rows(self, reader: _Reader) -> None:
        if reader.skip("ONE"):
            reader.expect("ROW", "PER", "MATCH")
            return
        reader.expect("ALL", "ROWS", "PER", "MATCH")
        self.said["all_rows"] = True
        if reader.skip("OMIT"):
            reader.expect("EMPTY", "MATCHES")
            self.said["empty"] = False
        elif reader.skip("WITH"):
            reader.expect("UNMATCHED", "ROWS")
            self.said["unmatched"] = True
        elif reader.peek().kind != "end":
            reader.expect("SHOW", known=["SHOW", "OMIT", "WITH"])
            reader.expect("EMPTY", "MATCHES")

    def _after_match(self, reader: _Reader) -> None:
        reader.expect("AFTER", "MATCH", "SKIP")
        self.places["after_match"] = reader.tokens[0].start
        self.said["after_match"] = self._skip(reader)

    def _skip(self, reader: _Reader) -> AfterMatch:
        if reader.skip("PAST"):
            reader.expect("LAST", "ROW")
            return AfterMatch()
        if reader.skip("NONE"):
            return AfterMatch("none")
        reader.expect("TO", known=["PAST LAST ROW", "TO NEXT ROW", "TO FIRST", "TO LAST", "NONE"])
        if reader.skip("NEXT", "ROW"):
            return AfterMatch("to next row")
        kind: Literal["to first", "to last"] = "to last"
        if reader.peek().word in ("FIRST", "LAST"):
            kind = "to first" if reader.next().word == "FIRST" else "to last"
        self.places["after_match"] = reader.at
        return AfterMatch(kind, reader.name("a symbol"))

    def _all_runs(self, reader: _Reader) -> None:
        reader.place = 2
        self.said["all_runs"] = True

    def _timed_out(self, reader: _Reader) -> None:
        self.places["timed_out"] = reader.at
        reader.place = 2
        self.said["timed_out"] = True

    def _window(self, reader: _Reader) -> None:
        self.places["window"] = reader.at
        reader.place = 2
        closing = _closing(reader, 1)
        if reader.skip("ROWS"):
            size = reader.count()
            slide = reader.count() if reader.skip("SLIDE") else size
            keyed = reader.skip("PER")
            if keyed:
                reader.expect("KEY")
            window = Window("keyed" if keyed else "count", size, slide)
        elif reader.skip("RANGE"):
            size = reader.interval()
            window = Window("time", size, reader.interval() if reader.skip("SLIDE") else size)
        elif reader.skip("OPEN"):
            window = self._opened(reader, closing)
        else:
            raise reader.unexpected(["ROWS", "RANGE", "OPEN"])
        reader.expect(")", known=["SLIDE", "PER KEY", ")"])
        self.said["window"] = window

    def _opened(self, reader: _Reader, closing: int) -> Window:
        """OPEN WHEN p [CLOSE WHEN q] FOR n ROWS | interval; predicates reach up to the next of these words."""
        reader.expect("WHEN")
        start = reader.place
        top = _top_level(reader, start, closing)
        words = {i: reader.tokens[i].word for i in top}
        for_ = next((i for i in top if words[i] == "FOR"), None)
        if for_ is None:
            raise reader.error("FOR n ROWS or FOR INTERVAL .. is missing: a window has to end", reader.tokens[closing].start)
        close = next((i for i in top if i < for_ and words[i] == "CLOSE" and words.get(i + 1) == "WHEN"), None)
        end = for_ if close is None else close
        open_when, self.places["open_when"] = reader.text(start, end, "a predicate after OPEN WHEN")
        close_when = None
        if close is not None:
            close_when, self.places["close_when"] = reader.text(close + 2, for_, "a predicate after CLOSE WHEN")
        reader.place = for_ + 1
        if reader.peek().kind == "number":
            size = reader.count()
            reader.expect("ROWS")
            return Window("opened", size, size, open_when, close_when, by_rows=True)
        size = reader.interval()
        return Window("opened", size, size, open_when, close_when)

    def _pattern(self, reader: _Reader) -> None:
        closing = _closing(reader, 1)
        end = next(
            (i for i in range(2, closing) if reader.tokens[i].word == "WITHIN" and reader.tokens[i + 1].word == "INTERVAL"),
            closing,
        )
        if end == 2:
            raise reader.error("the pattern is empty", reader.tokens[2].start if len(reader.tokens) > 2 else reader.end)
        text, at = reader.text(2, end, "a pattern")
        self.places["pattern"] = at
        try:
            self.said["pattern"] = parse_pattern(text)
        except ExpressionError as error:
            raise placed_error(str(error), self.sql, at + (error.column or 1)) from None
        reader.place = end
        while reader.peek().word == "WITHIN":
            self._within(reader)
        reader.expect(")")

    def _within(self, reader: _Reader) -> None:
        at = reader.at
        reader.expect("WITHIN")
        micros = reader.interval()
        clause = "within"
        if reader.skip("BETWEEN"):
            reader.expect("STEPS")
            clause = "within_steps"
        if clause in self.said:
            raise reader.error("WITHIN is given twice", at)
        self.places[clause] = at
        self.said[clause] = micros

    def _subset(self, reader: _Reader) -> None:
        self.places["subset"] = reader.at
        reader.place = 1

        def read() -> tuple[str, tuple[str, ...]]:
            at = reader.at
            name = reader.name("a name")
            reader.expect("=", "(")
            members = tuple(reader.list_of(lambda: reader.name("a symbol")))
            reader.expect(")")
            return name, self._once("subset", name, at, members)

        self.said["subsets"] = dict(reader.list_of(read))

    def _define(self, reader: _Reader) -> None:
        define: dict[str, str] = {}
        reader.place = 1
        for start, end in _items(reader):
            reader.place = start
            at = reader.at
            symbol = reader.name("a symbol")
            if reader.place >= end or not reader.skip("AS"):
                raise reader.error(f"AS is missing after '{symbol}': write {symbol} AS predicate")
            text, self.places[f"define.{symbol}"] = reader.text(reader.place, end, "a predicate")
            define[symbol] = self._once("symbol", symbol, at, text)
        reader.place = len(reader.tokens)
        self.said["define"] = define


_READ: Mapping[str, Callable[[_Clauses, _Reader], None]] = {
    "PARTITION BY": _Clauses._partition,
    "ORDER BY": _Clauses._order,
    "MEASURES": _Clauses._measures,
    "ROWS PER MATCH": _Clauses._rows,
    "AFTER MATCH SKIP": _Clauses._after_match,
    "ALL RUNS": _Clauses._all_runs,
    "TIMED OUT": _Clauses._timed_out,
    "WINDOW": _Clauses._window,
    "PATTERN": _Clauses._pattern,
    "WITHIN": _Clauses._within,
    "SUBSET": _Clauses._subset,
    "DEFINE": _Clauses._define,
}


def _items(reader: _Reader) -> list[tuple[int, int]]:
    """The stretches between the commas that stand in no brackets."""
    commas = [i for i in _top_level(reader, reader.place, len(reader.tokens)) if reader.tokens[i].text == ","]
    return list(zip([reader.place, *(i + 1 for i in commas)], [*commas, len(reader.tokens)], strict=True))


def _top_level(reader: _Reader, start: int, end: int) -> list[int]:
    """The places from `start` to `end` that stand in no brackets."""
    places, depth = [], 0
    for place in range(start, end):
        depth -= reader.tokens[place].text == ")"
        if depth == 0:
            places.append(place)
        depth += reader.tokens[place].text == "("
    return places


def _closing(reader: _Reader, opening: int) -> int:
    """The place of the bracket that closes the one at `opening`; the whole clause is balanced, so there is one."""
    depth = 0
    for place in range(opening, len(reader.tokens)):
        depth += {"(": 1, ")": -1}.get(reader.tokens[place].text, 0)
        if depth == 0:
            return place
    raise reader.error("')' is missing", reader.end)
