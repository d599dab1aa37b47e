"""A pytest plugin: the tiers of the tests, and the order of their files.

``--tier quick`` runs what needs one process, ``smoke`` a few tests of the real thing and those that measure the
processor's time, ``full`` the rest, ``heavy`` what takes minutes each. Every test is in one tier, by what it starts
(``LONG`` names the exceptions);
``heavy`` has the properties too, with ten times as many examples.
``make test`` runs the first two, ``make test-full`` the third, ``make test-heavy`` the fourth.
"""

from __future__ import annotations

import json
import os
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.starts import KINDS, markers_of

TIERS: Final = ("quick", "smoke", "full", "heavy")
SMOKE: Final = (
    "docs/test_spark_pages.py::test_commands_of_a_page_do_what_it_says[README.md]",
    "end_to_end/test_real_clients.py",
    "end_to_end/test_retained_after_kill.py",
    "end_to_end/test_restart.py",
    "end_to_end/test_gates_on_the_way.py",
    "bridges/kafka/test_kafka_both_ways.py",
    "ui/test_dashboard.py::test_a_rule_is_tried_saved_and_runs",
)
"""Files and tests of ``smoke``: publish to table row with Spark, real clients, a ``kill -9``, restarts, the gates,
Kafka both ways, a rule in a browser."""
LONG: Final = (
    "broker/auth/test_jwt_on_the_wire.py",
    "broker/auth/test_left_behind.py",
    "broker/auth/test_revocation.py",
    "broker/auth/test_session_owners.py",
    "broker/net/test_collector.py",
    "broker/streams/test_topic_index.py",
    "bridges/spark/test_members.py",
    "bridges/spark/test_upsert.py",
    "cluster/test_faces.py",
    "cluster/test_kept_streams.py",
    "cluster/test_links.py",
    "cluster/test_machines.py",
    "cluster/test_share_faults.py",
    "cluster/test_streams.py",
    "bridges/resource/test_alarms_of_sources.py",
    "bridges/spark/test_iceberg_upkeep.py",
    "bridges/spark/test_lake_audit.py",
    "bridges/spark/test_audit_values.py",
    "end_to_end/test_metric_export.py",
    "end_to_end/test_rights.py",
    "end_to_end/test_planted_secrets.py",
    "end_to_end/test_accounts.py",
    "end_to_end/test_access.py",
    "end_to_end/test_apply.py",
    "end_to_end/test_audit_log.py",
    "end_to_end/test_change_while_running.py",
    "end_to_end/test_tokens.py",
    "end_to_end/test_topics.py",
    "end_to_end/test_external_http.py",
    "end_to_end/test_effects_of_kinds.py",
    "end_to_end/test_import_emqx.py",
    "end_to_end/test_jobs.py",
    "end_to_end/test_quarantine.py",
    "end_to_end/test_rule_life.py",
    "end_to_end/test_stream_replays.py",
    "end_to_end/test_telemetry.py",
    "end_to_end/test_catalogues.py",
    "end_to_end/test_cascade.py",
    "end_to_end/test_impact.py",
    "end_to_end/test_named_secrets.py",
    "ui/test_web_build.py",
)
"""Files of ``full`` although they need one process: they take long, and their lines are run by others too."""
TOGETHER: Final = {
    "spark": (
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
    ),
    "kafka": tuple(
        f"bridges/kafka/test_kafka_{name}.py"
        for name in ("both_ways", "sink", "source", "transactions")
    ),
}
"""Files that one process runs in this order, by what they share: two Sparks at once take longer than one after the
other. Those with clusters of their own are before those that share a session, whose environment stays."""
GROUPS: Final = {file: name for name, files in TOGETHER.items() for file in files}
TESTS: Final = Path(__file__).parents[1]
SECONDS: Final = TESTS / "seconds.json"
"""Seconds that each file took, written by ``python -m tests.support.durations``; the longest files run first."""
UNKNOWN_S: Final = 10.0
"""Seconds of a file that is not in there."""
FILES_OF_TIERS: Final = TESTS.parent / "build" / "files-of-tiers.json"
"""Files with tests of each tier, and the state of all tests at that moment, by the last quick run of all files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tier``, and how many cells the broker of conformance tests has."""
    parser.addoption(
        "--cells", type=int, default=0, help="cells of the broker of conformance tests"
    )
    parser.addoption("--cell-tls", action="store_true", help="clients reach these cells with TLS")
    parser.addoption(
        "--tier", choices=TIERS, help="run the tests of one tier: see tests/support/tiers.py"
    )


@cache
def _files_with(tier: str) -> frozenset[str] | None:
    """Files with tests of a tier; None where that is not known of the present tests."""
    try:
        kept: dict[str, Any] = json.loads(FILES_OF_TIERS.read_text())
    except FileNotFoundError:
        return None
    return frozenset(kept["files"][tier]) if kept["state"] == _state() else None


def _state() -> str:
    """Changes with any file of the tests."""
    digest = sha256()
    for file in sorted(TESTS.rglob("*.py")):
        about = file.stat()
        digest.update(f"{file} {about.st_mtime_ns} {about.st_size}\n".encode())
    return digest.hexdigest()


def _keep_files_of_tiers(items: list[pytest.Item]) -> None:
    files: dict[str, set[str]] = {tier: set() for tier in TIERS}
    for item in items:
        files[tier_of(item)].add(_file(item))
        if _is_property(item):
            files["heavy"].add(_file(item))
    kept = {"state": _state(), "files": {tier: sorted(files[tier]) for tier in TIERS}}
    FILES_OF_TIERS.parent.mkdir(exist_ok=True)
    whole = FILES_OF_TIERS.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(kept))
    whole.rename(FILES_OF_TIERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files that have tests of the tier, where a quick run of these very tests has kept them."""
    tier = config.getoption("tier")
    if collection_path.suffix != ".py" or tier in (None, "quick"):
        return None
    files = _files_with(tier)
    is_of_tier = files is None or str(collection_path.relative_to(TESTS)) in files
    return None if is_of_tier or _has_more_tests(collection_path.parent) else True


@cache
def _has_more_tests(folder: Path) -> bool:
    """True if tests of a folder may be others in another tier: a quick run does not know these."""
    conftest = folder / "conftest.py"
    return conftest.exists() and 'getoption("tier")' in conftest.read_text()


def tier_of(item: pytest.Item) -> str:
    """The tier of a marked test."""
    if item.get_closest_marker("heavy"):
        return "heavy"
    name = item.nodeid.removeprefix("tests/")
    if any(name == place or name.startswith(f"{place}::") for place in SMOKE):
        return "smoke"
    if item.get_closest_marker("cells"):
        return "full"
    if _file(item) in LONG or any(item.get_closest_marker(kind) for kind in KINDS):
        return "full"
    return "smoke" if item.get_closest_marker("timed") else "quick"


def _file(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0].removeprefix("tests/")


def _is_property(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by what it starts, choose those of the tier, and put the longest files first."""
    for item in items:
        for marker in markers_of(item) if isinstance(item, pytest.Function) else ():
            item.add_marker(marker)
        kinds = [kind for kind in KINDS if item.get_closest_marker(kind)]
        item.user_properties.append(("kind", kinds[0] if kinds else "in process"))
    if tier := config.getoption("tier"):
        if tier == "quick" and config.args == config.getini("testpaths"):
            _keep_files_of_tiers(items)
        chosen = [
            item
            for item in items
            if tier_of(item) == tier or (tier == "heavy" and _is_property(item))
        ]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen
    seconds: dict[str, float] = json.loads(SECONDS.read_text())
    seconds_of_groups = {
        name: sum(seconds.get(file, UNKNOWN_S) for file in files)
        for name, files in TOGETHER.items()
    }

    def rank(item: pytest.Item) -> tuple[float, str, int]:
        file = _file(item)
        group = GROUPS.get(file, file)
        place = TOGETHER[group].index(file) if group in TOGETHER else 0
        return -seconds_of_groups.get(group, seconds.get(file, UNKNOWN_S)), group, place

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With ``--dist loadfile``, files that share a server stay together as if they were one."""
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives out tests by file."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return GROUPS.get(file.removeprefix("tests/"), file)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Fail where CI skipped a test: what is missing there has to be installed."""
    skipped = terminalreporter.stats.get("skipped", ())
    if skipped:
        terminalreporter.line(
            f"{len(skipped)} tests were skipped; the summary above says what each of them lacks"
        )
        if os.environ.get("CI") and terminalreporter._session.exitstatus == pytest.ExitCode.OK:
            terminalreporter.line("CI skips nothing: install what is missing", red=True)
            terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED
