"""Through a rule and out again, against mosquitto bare: `python -m benchmarks.republish`.

Each message that a client publishes on `bench/...` is republished by a rule on `after/...`, and the subscriber of that
counts. Mosquitto just forwards. Both are loaded in turns; the figure to look at is the ratio. The topics are of one
length, since the load generator counts by size.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.bare import MOSQUITTO, Case, compare, mosquitto
from benchmarks.pipeline import create, serving

AFTER = ("--filter", "after/#")
CASES = (
    Case(
        "rule and republish, QoS 0", {MOSQUITTO: 1.7}, "deliver_per_s", ("--count", "300000"), AFTER
    ),
    Case(
        "the same, QoS 1, 10 to 1",
        {MOSQUITTO: 0},
        "deliver_per_s",
        ("--qos", "1", "--subqos", "1", "--pubs", "10"),
        AFTER,
    ),
)
RULE = {
    "name": "after",
    "sql": 'SELECT * FROM "bench/#" WHERE payload.temp > 20',
    "actions": [{"type": "republish", "topic": "after/0000/0000", "payload": "${payload}"}],
}


def main() -> None:
    """Run the cases and print a table; the exit status tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns per broker and case")
    options = parser.parse_args()
    with serving() as (ready, _), mosquitto() as theirs:
        create(ready["api"], "rules", RULE)
        ours = int(ready["mqtt"].rpartition(":")[2])
        reached = [compare(case, ours, {MOSQUITTO: theirs}, options.rounds) for case in CASES]
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
