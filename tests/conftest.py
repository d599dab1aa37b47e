"""What all tests have in common."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is; a test that hangs is ended by pytest's own time-out.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("suite")

LONGEST_FIRST = (
    "docs/test_tutorial.py",
    "docs/test_how_to.py",
    "end_to_end/test_kill_nine.py",
    "differential/test_spark_sql.py",
    "contracts/test_connectors.py",
    "bridges/spark/test_source.py",
    "bridges/spark/test_rule_job.py",
    "bridges/spark/test_lake_job.py",
    "bridges/mqtt/test_mqtt_loops.py",
    "end_to_end/test_random_kills.py",
    "end_to_end/test_hostile_packets.py",
    "end_to_end",
    "docs",
    "broker/cli",
    "bridges",
)
"""Files and folders that take longest. Those that share a Spark stand together, so that one process starts it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long files first: were one the last, the other processes would end long before it."""
    root = config.rootpath / "tests"
    places = [root / name for name in LONGEST_FIRST]
    assert all(place.exists() for place in places), "LONGEST_FIRST names a file that is no more"
    ranks: dict[Path, int] = {}
    for item in items:
        if item.path not in ranks:
            around = {item.path, *item.path.parents}
            ranks[item.path] = next((rank for rank, place in enumerate(places) if place in around), len(places))
    items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no garbage collection needs to look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What the collector does not see when the interpreter ends is reported as leaked by DuckDB, in a hundred lines."""
    gc.unfreeze()
