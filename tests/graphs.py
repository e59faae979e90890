"""A pipeline of operators that feed operators: three levels, fan-out, fan-in, the log merged with what was found in it."""

from __future__ import annotations

from tests.conftest import PIPELINE

GRAPH = (
    PIPELINE
    + """
  rising:
    partition_by: key
    pattern: A B+
    define: {A: type <> 'd', B: amount > PREV(amount)}
    measures: {top: LAST(B.amount), steps: COUNT(B.*)}
  quiet:
    partition_by: key
    pattern: A -> !B
    define: {A: type = 'a' AND amount > 20, B: type = 'd'}
    within: 40 s
    measures: {top: A.amount}
  pairs:
    from: probing
    partition_by: key
    pattern: P -> Q
    define: {P: loss > 1, Q: loss < P.loss}
    measures: {worst: P.loss}
    within: 30 min
  crowd:
    from: [probing, rising, quiet]
    window: {count: 12, slide: 5}
    pattern: R -> P -> R
    define: {R: "type = 'rising' AND steps > 1", P: "type IN ('probing', 'quiet')"}
    measures: {peak: MAX(R.top)}
  echo:
    from: [event_log, quiet]
    partition_by: key
    pattern: Q -> A
    define: {Q: type = 'quiet', A: "type = 'a' AND amount > Q.top"}
    within: 20 min
    after_match: to next row
  alarm:
    from: [pairs, crowd, echo]
    pattern: X -> !E -> X
    define: {X: "type = 'crowd' OR type = 'pairs'", E: type = 'echo' AND ts > FIRST(X.ts)}
    window: {time: 10 min, slide: 2 min}
    measures: {of: FIRST(X.type), until: LAST(X.ts)}
"""
)
LEVELS = [["probing", "rising", "quiet"], ["pairs", "crowd", "echo"], ["alarm"]]
