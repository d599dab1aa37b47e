"""The cost of a login: `python -m benchmarks.logins [--rate 1000] [--only postgresql]`.

Clients connect at a steady rate, each with an identifier of its own and one of 500 users, and leave. Sluice runs as
users run it (`sluice serve`), without an authenticator and with each outside service in turn. Printed are the
processor time of the broker for a client (connect, login, disconnect), the rate that was reached, and the slowest
answer. The exit status is 1 where a client was not let in, or where each costs a millisecond or more, so that one
processor does not take 1,000 in a second.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

from benchmarks.pipeline import serving
from benchmarks.tracing import cpu_ns
from tests.support.connect_storm import ConnectStorm
from tests.support.login_services import SERVICES

PLAIN = "no authenticator"
WANTED_US = 1000.0


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1000, help="clients a second")
    parser.add_argument("--clients", type=int, default=5000, help="clients of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="services whose name contains this")
    options = parser.parse_args()
    missed = False
    for name in (PLAIN, *SERVICES):
        if options.only in name:
            missed |= _measured(name, options)
    return int(missed)


def _measured(name: str, options: argparse.Namespace) -> bool:
    """Print the figures of one service; returns whether it misses its limit."""
    with ExitStack() as stack:
        settings = ["login_limits.enable=false", "overload.enable=false"]
        if name != PLAIN:
            authenticator, _ = stack.enter_context(SERVICES[name]())
            settings.append(f"authentication=[{{ {authenticator} }}]")
        ready, _ = stack.enter_context(serving(*settings))
        pid = int(ready["pid"])
        port = int(ready["mqtt"].rpartition(":")[2])
        storm = stack.enter_context(ConnectStorm(port, options.rate, anonymous=name == PLAIN))
        storm.phase("warm", 1000)
        costs = []
        for number in range(options.rounds):
            used_ns = cpu_ns(pid)
            phase = storm.phase(f"round {number}", options.clients)
            cost_us = (cpu_ns(pid) - used_ns) / phase.ended / 1e3
            costs.append(cost_us)
            print(
                f"{name:18} {cost_us:6.0f} µs a client, {phase.ended / phase.took_s:6.0f} a second, slowest answer "
                f"{phase.slowest_s * 1e3:.0f} ms, answers {phase.codes}",
                flush=True,
            )
        refused = any(set(phase.codes) - {"0"} for phase in storm.stop().values())
    return refused or min(costs) >= WANTED_US


if __name__ == "__main__":
    sys.exit(main())
