"""From a caller's leaving to every page back on both workers, under load, by stage of the request and part of the way.

    PYTHONPATH=tests python tests/bench/cancel.py [CANCELS [FLAG OF up ...]]

Takes a minute. Prints a table: cancels, p50, p99 and most. The goal: p99 below 100 ms; the exit code says if not.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from bench.memory import MISSED
from fixtures.cancel_times import GOAL_S, percentile, table, times, told
from fixtures.leaving import cut_many, pair

CANCELS = 300


def main(count: int, flags: list[str]) -> int:
    with tempfile.TemporaryDirectory() as directory, pair(Path(directory), *flags) as cluster:
        cuts = asyncio.run(cut_many(cluster, count))
        cluster.wait_at_rest()
        took = times(cuts, told(Path(cluster.state["logs"]["path"])).gone)
    print(table(took))
    return 0 if percentile([each.all for each in took], 0.99) < GOAL_S else MISSED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else CANCELS, sys.argv[2:]))
