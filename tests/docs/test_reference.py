"""What the pages say of the code is so."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from bridges.feature import BUILT_IN
from broker.app.build import section_models
from broker.config.reference import describe
from broker.config.root import REMOVED
from broker.core.kinds import kinds, object_sections
from docs.generate import DASHBOARD_KINDS, DIRECTORY, dashboard_kinds, pages
from tests.docs.session import ROOT

PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
    ]
)
_PACKAGES = (
    "broker",
    "rules",
    "schema_validation",
    "transforms",
    "bridges",
    "ui",
    "pyspark_sluice",
)
_MODULE = re.compile(rf"`((?:{'|'.join((*_PACKAGES, 'tests', 'benchmarks'))})(?:/[\w.]+)*/?)`")
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
_SECTIONS = "|".join({section.partition(".")[0] for section in section_models()})
_SETTING = re.compile(rf"`((?:{_SECTIONS})\.[\w.]+)`")


def _id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_reference_is_what_the_code_says() -> None:
    written = {page.name: page.read_text() for page in DIRECTORY.glob("*.md")}
    said = {name: text for name, text in pages().items() if name.endswith(".md")}
    assert written == said, "run 'python -m docs.generate' and commit what it writes"


def test_dashboard_knows_the_kinds_as_they_are_declared() -> None:
    assert DASHBOARD_KINDS.read_text() == dashboard_kinds(), (
        "run 'python -m docs.generate' and commit what it writes"
    )


def test_reference_has_every_metric_that_the_code_names() -> None:
    page = (DIRECTORY / "metrics.md").read_text()
    sources = [file.read_text() for package in _PACKAGES for file in (ROOT / package).rglob("*.py")]
    named = {
        name
        for source in sources
        for name in re.findall(r"\.(?:counter|gauge)\(\s*\"(\w+)\"", source)
    }
    assert len(named) > 20
    assert not [name for name in named if f"`sluice_{name}" not in page]


@pytest.mark.parametrize("page", ["objects.md", "connectors.md", "settings.md", "metrics.md"])
def test_reference_says_what_each_member_means(page: str) -> None:
    rows = [line for line in (DIRECTORY / page).read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert not [row for row in rows if row.endswith("|  |")]


def test_reference_has_every_type_of_connector_and_kind_of_object() -> None:
    connectors, objects = (
        (DIRECTORY / "connectors.md").read_text(),
        (DIRECTORY / "objects.md").read_text(),
    )
    assert not [name for name in BUILT_IN if f"### `{name}`: connector" not in connectors]
    assert not [kind.path for kind in kinds() if f"`/api/v1/{kind.path}`" not in objects]


def test_every_page_is_in_the_index_once() -> None:
    index = ROOT / "docs" / "README.md"
    linked = [target for target, _ in _LINK.findall(index.read_text()) if "://" not in target]
    assert len(linked) == len(set(linked))
    named = {(index.parent / target).resolve() for target in linked}
    decisions = index.parent / "decisions"
    named |= {
        (decisions / target).resolve()
        for target, _ in _LINK.findall((decisions / "README.md").read_text())
    }
    missing = {page for page in PAGES if page.is_relative_to(index.parent)} - named - {index}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in _anchors(found), f"{target}{anchor} does not exist"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_modules_named_exist(page: Path) -> None:
    for name in _MODULE.findall(page.read_text()):
        assert (ROOT / name).exists(), f"{name} does not exist"


def test_architecture_names_modules_of_every_package() -> None:
    named = _MODULE.findall((ROOT / "docs" / "architecture.md").read_text())
    missing = [
        package for package in _PACKAGES if not any(name.startswith(package) for name in named)
    ]
    assert not missing


@cache
def _events() -> frozenset[str]:
    """What log lines begin with: ``store.opened`` looks like a setting."""
    sources = (file.read_text() for package in _PACKAGES for file in (ROOT / package).rglob("*.py"))
    return frozenset(
        name for source in sources for name in re.findall(r"log\.\w+\(\s*\"([\w.]+)[ \"]", source)
    )


@cache
def _headers() -> frozenset[str]:
    """Headers of Kafka records: ``mqtt.topic`` looks like a setting."""
    return frozenset(
        re.findall(r"\bmqtt\.[a-z.-]+", (ROOT / "bridges" / "kafka" / "headers.py").read_text())
    )


@cache
def _keys() -> frozenset[str]:
    settings = (entry.key for entry in describe(section_models()))
    return frozenset((*settings, *object_sections(), *REMOVED, *_events(), *_headers()))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "connectors.md"], ids=_id)
def test_settings_named_exist(page: Path) -> None:
    keys = _keys()
    for name in (found.removesuffix(".NAME") for found in _SETTING.findall(page.read_text())):
        assert (
            any(key == name or key.startswith(f"{name}.") for key in keys) or (ROOT / name).exists()
        ), name


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_make_targets_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M)
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_commands_named_exist(page: Path) -> None:
    cli = (DIRECTORY / "cli.md").read_text()
    for name in re.findall(
        r"(?:`|^)sluice ((?:(?:config|lake|lake tables|streams|rules) )?[a-z][a-z-]*)",
        page.read_text(),
        re.M,
    ):
        assert f"## `sluice {name}`" in cli, f"there is no command 'sluice {name}'"


def test_queues_are_named_as_the_page_of_metrics_says() -> None:
    meaning = next(
        line for line in pages()["metrics.md"].splitlines() if line.startswith("| `queue` |")
    )
    assert "`actions/kafka:orders` is the buffer" in meaning
    assert "`dead-letters/kafka:orders`" in meaning
