"""A query as SQL text; and the words that begin a clause, which as names have to be quoted."""

from __future__ import annotations

import re

from spark_jobs.cep.operator import AfterMatch
from spark_jobs.cep.query import Order, Query
from spark_jobs.cep.windows import Window
from spark_jobs.cep.words import interval_text

_PLAIN = re.compile(r"[^\W\d]\w*")

# What the first words of each clause are, after the standard; "(" and a word in capitals are looked for as they are.
CLAUSES: dict[str, tuple[tuple[str, ...], ...]] = {
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

FIRST_WORDS = sorted({words[0] for choices in CLAUSES.values() for words in choices})

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


def to_sql(query: Query, table: str) -> str:
    """The query as SQL; reading it again gives an equal query."""
    lines = [f"SELECT * FROM {table} MATCH_RECOGNIZE ("]  # noqa: S608  # printed for people; running it is up to them
    if query.partition_by:
        lines.append("  PARTITION BY " + ", ".join(map(name_text, query.partition_by)))
    if query.order_by:
        lines.append("  ORDER BY " + ", ".join(map(_order_text, query.order_by)))
    if query.measures:
        lines.append("  MEASURES " + ", ".join(f"{text} AS {name_text(name)}" for name, text in query.measures.items()))
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


def name_text(name: str, spark: bool = False) -> str:
    if _PLAIN.fullmatch(name) and name.upper() not in (*FIRST_WORDS, *_JOINING):
        return name
    return "`" + name.replace("`", "``") + "`" if spark else '"' + name.replace('"', '""') + '"'


def _order_text(order: Order) -> str:
    nulls = "" if order.nulls_first != order.descending else f" NULLS {'FIRST' if order.nulls_first else 'LAST'}"
    return f"{name_text(order.column)}{' DESC' if order.descending else ''}{nulls}"


def _window_text(window: Window) -> str:
    if window.kind == "opened":
        close = f" CLOSE WHEN {window.close_when}" if window.close_when is not None else ""
        return f"OPEN WHEN {window.open_when}{close} FOR " + (
            f"{window.size} ROWS" if window.by_rows else interval_text(window.size)
        )
    if window.kind == "time":
        return f"RANGE {interval_text(window.size)} SLIDE {interval_text(window.slide)}"
    return f"ROWS {window.size} SLIDE {window.slide}" + (" PER KEY" if window.kind == "keyed" else "")
