"""What all tests have in common."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from broker.config.allowed import AllowedSettings, confine

# How long an example takes says how busy the machine is; a test that hangs is ended by pytest's own time-out.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("suite")

os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "support/spark_conf")

SCRATCH = [Path(gettempdir())]


@pytest.fixture(autouse=True)
def below_the_temporary_directory() -> None:
    """Objects of a test read and write there; a broker that ran in this process had bounds of its own."""
    confine(AllowedSettings(secret_directories=SCRATCH, directories=SCRATCH), None)


SPARK = (
    "docs/test_spark_pages.py",
    "end_to_end/test_kill_nine.py",
    "end_to_end/test_lake_faults.py",
    "end_to_end/test_no_orphans.py",
    "bridges/spark/test_lake_job.py",
    "bridges/spark/test_lake_states.py",
    "bridges/spark/test_evolution_job.py",
    "bridges/spark/test_java.py",
    "differential/test_spark_sql.py",
    "bridges/spark/test_source.py",
    "bridges/spark/test_rule_job.py",
    "bridges/spark/test_rules_over_kafka.py",
    "bridges/spark/test_members_job.py",
)
"""Files that start a Spark. One process has them all: two Sparks at once take longer than one after the other."""

KAFKA = tuple(f"bridges/kafka/test_kafka_{name}.py" for name in ("both_ways", "sink", "source", "transactions"))
"""Files whose tests share a Kafka."""

TOGETHER = dict.fromkeys(SPARK, "spark") | dict.fromkeys(KAFKA, "kafka")
"""Files that one process runs, by the name of what they share."""

DASHBOARD = tuple(
    f"ui/test_dashboard{name}.py" for name in ("_lake", "_bridges", "_gates", "_rules", "_lists", "_story", "")
)
"""Files of minutes in a browser."""

LONGEST_FIRST = (
    *SPARK,
    "docs/test_pages.py",
    *KAFKA,
    *DASHBOARD,
    "bridges/spark/test_object_store.py",
    "fuzz/test_fuzz_objects.py",
    "bridges/mqtt/test_mqtt_loops.py",
    "contracts/test_connectors.py",
    "end_to_end/test_random_kills.py",
    "end_to_end/test_hostile_packets.py",
    "end_to_end",
    "docs",
    "broker/cli",
    "bridges",
)
"""Files and folders that take longest."""

MEASURED = ("bridges", "broker", "conformance", "rules", "schema_validation", "transforms", "ui")
"""Folders whose tests run with the probes of branch coverage: they call the product in their own process."""


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
    measured, unmeasured = ([root / name for name in names] for names in (MEASURED, SPARK))
    for item in items:
        around = {item.path, *item.path.parents}
        if not (around.isdisjoint(measured) or around.intersection(unmeasured) or item.get_closest_marker("timed")):
            item.add_marker("measured")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With ``--dist loadfile``, files that share a server stay together as if they were one."""
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives out tests by file."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TOGETHER.get(file.removeprefix("tests/"), file)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no garbage collection needs to look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What the collector does not see when the interpreter ends is reported as leaked by DuckDB, in a hundred lines."""
    gc.unfreeze()
