"""MATCH_RECOGNIZE in SQL: the clause is cut out and read into a Query, the SQL around it is left to Spark.

Clauses are told apart by their first two words, so columns may be called `pattern` or `window`;
a name that stands where a clause could begin has to be quoted. Names and symbols keep their case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from spark_jobs.cep.operator import AfterMatch
from spark_jobs.cep.pattern import parse_pattern
from spark_jobs.cep.query import Order, Query, placed_error
from spark_jobs.cep.sql_text import CLAUSES, FIRST_WORDS, name_text
from spark_jobs.cep.sql_tokens import TOKEN, Reader, T, Token, unquoted
from spark_jobs.cep.windows import Window
from spark_jobs.errors import ExpressionError, suggest

# Longer texts are generated; the bound keeps a hostile one from holding up a service.
MAX_SQL = 200_000

# Around the clause Spark's rules hold: both quotes are text, with backslashes.
_OUTER = re.compile(
    r"""\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<quoted>`(?:[^`]|``)+`)"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<mark>.)""",
    re.DOTALL,
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
    again = next((m for m in _OUTER.finditer(sql, end) if (m["word"] or "").upper() == "MATCH_RECOGNIZE"), None)
    if again:
        raise placed_error("one MATCH_RECOGNIZE per query is possible; join the results of two", sql, again.start() + 1)
    query = _Clauses(sql, tokens, opening).query()
    before, after = (part.replace("{", "{{").replace("}", "}}") for part in (sql[:name_begin], sql[end:]))
    return f"{before}{{matches}} AS {name_text(alias, spark=True)}{after}", query


def _find_clause(sql: str) -> tuple[int, int, str]:
    """Where the table before MATCH_RECOGNIZE begins, where that word ends, and the last part of the table's name."""
    tokens: list[Token] = []
    for found in _OUTER.finditer(sql):
        kind = found.lastgroup
        if kind is None:
            continue
        if kind == "word" and found.group().upper() == "MATCH_RECOGNIZE":
            begin, name = _table_before(sql, tokens, found.start())
            _check_not_made_here(sql, tokens, name)
            return begin, found.end(), name
        tokens.append(Token(kind, found.group(), found.start()))
    for token in tokens:
        if token.word.startswith("MATCH") and suggest(token.word, ["MATCH_RECOGNIZE"]).startswith("; did"):
            raise placed_error(f"unknown word '{token.text}'; did you mean 'MATCH_RECOGNIZE'?", sql, token.start + 1)
    raise placed_error("there is no MATCH_RECOGNIZE (...) in the text", sql, 1)


def _check_not_made_here(sql: str, tokens: list[Token], name: str) -> None:
    """Spark would run `WITH name AS (..)` and the clause would look at something else."""
    for made, as_, bracket in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if made.name is not None and made.name.lower() == name.lower() and as_.word == "AS" and bracket.text == "(":
            raise placed_error(
                f"'{name}' is made by WITH in this text, but matches are looked for in the DataFrame that is given; "
                "run the WITH query on its own and match its DataFrame",
                sql,
                made.start + 1,
            )


def _table_before(sql: str, tokens: list[Token], end: int) -> tuple[int, str]:
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
    return tokens[place].start, unquoted(tokens[-1].text)


def _alias_after(sql: str, start: int, table: str) -> tuple[str, int]:
    found = re.compile(r"\s*(?P<as>AS\s+)?(?P<name>[^\W\d]\w*|`(?:[^`]|``)+`)", re.IGNORECASE).match(sql, start)
    if found is None or (not found["as"] and _AFTER_TABLE.fullmatch(found["name"])):
        return table, start
    return unquoted(found["name"]), found.end()


def _inside(sql: str, start: int) -> tuple[int, int, list[Token]]:
    """Where the brackets of the clause open and where what follows them begins; the tokens between."""
    opening = re.compile(r"(?:\s|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*\(").match(sql, start)
    if opening is None:
        raise placed_error("'(' is missing after MATCH_RECOGNIZE", sql, start + 1)
    tokens: list[Token] = []
    depth = 1
    for found in TOKEN.finditer(sql, opening.end()):
        kind, text = found.lastgroup or "mark", found.group()
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth == 0:
            return opening.end(), found.end(), tokens
        if kind != "space":
            tokens.append(Token(kind, text, found.start()))
    raise placed_error("')' is missing at the end of MATCH_RECOGNIZE", sql, opening.end())


class _Clauses:
    """The clauses of one MATCH_RECOGNIZE, in any order, each at most once."""

    def __init__(self, sql: str, tokens: list[Token], opening: int) -> None:
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
            reader = Reader(self.sql, self.tokens[start:end], last)
            _READ[clause](self, reader)
            if reader.place < len(reader.tokens):
                raise reader.unexpected(FIRST_WORDS)
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
                known = suggest(token.word, FIRST_WORDS) if token.word else ""
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
        for clause, choices in CLAUSES.items():
            if any(tuple(words[: len(choice)]) == choice for choice in choices) and (
                clause not in ("DEFINE", "SUBSET") or (len(words) == 3 and words[2] in ("AS", "="))
            ):
                return clause
        return None

    def _partition(self, reader: Reader) -> None:
        reader.place = 2
        self.said["partition_by"] = tuple(reader.list_of(lambda: self._column(reader, "partition_by")))

    def _order(self, reader: Reader) -> None:
        reader.place = 2

        def read() -> Order:
            at = reader.at
            order = reader.order()
            return self._once("order_by", order.column, at, order)

        self.said["order_by"] = tuple(reader.list_of(read))

    def _column(self, reader: Reader, clause: str) -> str:
        at = reader.at
        name = reader.name("a column")
        self._once(clause, name, at, name)
        return name

    def _once(self, clause: str, name: str, at: int, value: T) -> T:
        if f"{clause}.{name}" in self.places:
            raise placed_error(f"'{name}' is given twice", self.sql, at + 1)
        self.places[f"{clause}.{name}"] = at
        return value

    def _measures(self, reader: Reader) -> None:
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
                raise reader.unexpected(FIRST_WORDS)
            self.places[f"measures.{name}"] = at
            measures[name] = self._once("measure", name, at_name, text)
        self.said["measures"] = measures

    def _rows(self, reader: Reader) -> None:
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

    def _after_match(self, reader: Reader) -> None:
        reader.expect("AFTER", "MATCH", "SKIP")
        self.places["after_match"] = reader.tokens[0].start
        self.said["after_match"] = self._skip(reader)

    def _skip(self, reader: Reader) -> AfterMatch:
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

    def _all_runs(self, reader: Reader) -> None:
        reader.place = 2
        self.said["all_runs"] = True

    def _timed_out(self, reader: Reader) -> None:
        self.places["timed_out"] = reader.at
        reader.place = 2
        self.said["timed_out"] = True

    def _window(self, reader: Reader) -> None:
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

    def _opened(self, reader: Reader, closing: int) -> Window:
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

    def _pattern(self, reader: Reader) -> None:
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

    def _within(self, reader: Reader) -> None:
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

    def _subset(self, reader: Reader) -> None:
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

    def _define(self, reader: Reader) -> None:
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


_READ: Mapping[str, Callable[[_Clauses, Reader], None]] = {
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


def _items(reader: Reader) -> list[tuple[int, int]]:
    """The stretches between the commas that stand in no brackets."""
    commas = [i for i in _top_level(reader, reader.place, len(reader.tokens)) if reader.tokens[i].text == ","]
    return list(zip([reader.place, *(i + 1 for i in commas)], [*commas, len(reader.tokens)], strict=True))


def _top_level(reader: Reader, start: int, end: int) -> list[int]:
    """The places from `start` to `end` that stand in no brackets."""
    places, depth = [], 0
    for place in range(start, end):
        depth -= reader.tokens[place].text == ")"
        if depth == 0:
            places.append(place)
        depth += reader.tokens[place].text == "("
    return places


def _closing(reader: Reader, opening: int) -> int:
    """The place of the bracket that closes the one at `opening`; the whole clause is balanced, so there is one."""
    depth = 0
    for place in range(opening, len(reader.tokens)):
        depth += {"(": 1, ")": -1}.get(reader.tokens[place].text, 0)
        if depth == 0:
            return place
    raise reader.error("')' is missing", reader.end)
