"""The process of a back-test: one job of JSON on standard input, progress and the result as lines on standard output.

It has the features' own functions and schemas, and nothing else of a node: no store, no network but the range server.
Ends when its input does or its parent dies; runs with low priority and a bound on its memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from broker.app import features
from broker.core.clock import SystemClock
from broker.core.errors import Invalid, SluiceError
from broker.core.events import Events
from broker.core.feature import MessagingPort, MonitoringPort, NodePort, Services, StoragePort
from broker.core.objects import MemorySection
from broker.core.process import die_with_parent, end_with_input
from broker.observe.metrics import Metrics
from broker.storage.without_pandas import keep_pandas_out

_NICE: Final = 10
_SCHEMAS: Final = "schema_registry.schemas"


def main() -> None:
    """Run the job."""
    keep_pandas_out()
    job = json.loads(sys.stdin.readline())
    die_with_parent(job["parent"])
    threading.Thread(target=end_with_input, name="parent watch", daemon=True).start()
    os.nice(_NICE)
    try:
        _run(job)
    except SluiceError as error:
        problems = error.problems if isinstance(error, Invalid) else ()
        _say(failed="; ".join(map(str, problems)) or str(error))
    except MemoryError:
        _say(failed=f"it needs more than {job['memory_bytes']:,} bytes of memory")
    except Exception as error:  # noqa: BLE001  reported to the caller, in the broker
        _say(failed=str(error) or type(error).__name__)


def _run(job: dict[str, Any]) -> None:
    run = features.load(features.BACKTEST)
    services = _services(job)
    rules = features.load(features.RULES)(services)
    _bound_memory(job["memory_bytes"])
    ends_s = time.monotonic() + job["deadline_s"]
    result = run(
        job,
        services,
        rules.functions.trial(),
        rules.settings,
        ends_s,
        lambda done, total: _say(done=done, total=total),
    )
    _say(result=result)


def _services(job: dict[str, Any]) -> Services:
    """Services of a node that has the schemas of the one that asks, and nothing else."""
    sections = {_SCHEMAS: MemorySection(job["schemas"])}
    nothing = _Nothing()
    services = Services(
        NodePort(job["node"], SystemClock()),
        MessagingPort(
            Events(), plans=nothing, publisher=nothing, set_state=lambda _name, _value: None
        ),
        StoragePort(lambda path: sections.setdefault(path, MemorySection()), streams=nothing),
        MonitoringPort(Metrics()),
    )
    schemas = features.load(features.SCHEMA_VALIDATION)(services)
    if job["schemas"]:
        schemas.start()
    return services


class _Nothing:
    """Stands for the parts of a node that evaluating SQL does not touch."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a back-test has no {name}")

    def invalidate(self) -> None:
        """There are no plans."""


def _bound_memory(memory_bytes: int) -> None:
    """Limit the memory from here on to this much more than the program itself takes."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _say(**line: Any) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
