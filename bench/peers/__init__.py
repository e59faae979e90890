"""Reprise beside its peers: Flink's CEP and SQL, Structured Streaming with an operator written by hand, and a plain scan.

The modules: **workloads.py** says every workload once. **side_by_side.py** is the run. **flink.py** with FlinkPeer.java,
**streaming.py** with **by_hand.py**, and **floor.py** are the others. **digest.py** and **results.py** compare what was found;
**recovery.py** kills us and Flink at half; **page.py** makes tables and charts of the results.
"""

from __future__ import annotations

from bench.bars import Bar


def peers(master: str) -> list[Bar]:
    # Not above: Spark's workers import by_hand.py from here, and need nothing else.
    from bench.peers.side_by_side import side_by_side

    return side_by_side(master)


def peers_recovery(master: str) -> list[Bar]:
    from bench.peers.side_by_side import after_a_kill

    return after_a_kill(master)
