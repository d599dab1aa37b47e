"""When the dashboard is built, and what is said when it cannot be."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from ui.web import build

WEB = build.WEB


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources in a place of their own, not built."""
    copy = tmp_path / "web"
    shutil.copytree(
        build.WEB, copy, ignore=shutil.ignore_patterns("node_modules", "dist", "__pycache__")
    )
    monkeypatch.setattr(build, "WEB", copy)
    monkeypatch.setattr(build, "STAMP", copy / "dist" / ".stamp")
    monkeypatch.delenv("SLUICE_UI", raising=False)
    return copy


def _stamp(sources: Path) -> None:
    (sources / "dist").mkdir()
    (sources / "dist" / ".stamp").write_text(build.digest())


def test_sources_that_are_built_need_no_node(sources: Path) -> None:
    hook = build.DashboardHook.__new__(build.DashboardHook)
    assert hook.dependencies() == [build.NODE]
    _stamp(sources)
    assert hook.dependencies() == []


@pytest.mark.parametrize(
    "changed", ["src/app/app.css", "package-lock.json", "index.html", "build.py"]
)
def test_a_changed_source_is_built_again(sources: Path, changed: str) -> None:
    _stamp(sources)
    with (sources / changed).open("a") as file:
        file.write("\n")
    assert build.is_wanted()


def test_the_environment_decides(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_UI", "skip")
    assert not build.is_wanted()
    _stamp(sources)
    monkeypatch.setenv("SLUICE_UI", "build")
    assert build.is_wanted()
    monkeypatch.setenv("SLUICE_UI", "no")
    with pytest.raises(SystemExit, match="SLUICE_UI: expected auto, build or skip, got 'no'"):
        build.is_wanted()


def test_without_node_it_says_what_to_do(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"make ui, or .*SLUICE_UI=skip"):
        build.build()


def test_lock_of_packages_names_no_server_and_node_is_that_of_the_lock() -> None:
    assert '"resolved"' not in (build.WEB / "package-lock.json").read_text()
    assert (build.ROOT / "locks" / "web.txt").read_text().startswith(f"{build.NODE} \\\n")


@pytest.mark.parametrize(
    ("source", "line", "rule"),
    [
        (
            "parts/format.ts",
            'import type { Column } from "./card";\nexport type Shown = Column;',
            "no circles",
        ),
        ("api/kinds.ts", 'export const load = () => import("./live");\nimport "./messages";', ""),
        ("api/channel.ts", 'export const load = () => import("./live");', "no circles"),
        ("api/client.ts", 'import "../parts/format";', "api imports no layer above it"),
        (
            "parts/job.tsx",
            'import type { Row } from "../pages/objects/menu";',
            "parts imports no layer above it",
        ),
        ("pages/rules/sql.ts", 'import "../../app/shell";', "pages imports no layer above it"),
        (
            "pages/rules/sql.ts",
            'export const load = () => import("../streams/streams");',
            "a page imports no other page",
        ),
        ("pages/tables/shadow.tsx", 'import "../registry";', "no circles"),
    ],
)
def test_circles_and_imports_against_the_layers_are_refused(
    sources: Path, source: str, line: str, rule: str
) -> None:
    build.install(WEB)
    (sources / "node_modules").symlink_to(WEB / "node_modules")
    if not (sources / build._TYPES).exists():  # after 'make check' they are there
        build.make_types(sources)
    with (sources / "src" / source).open("a") as file:
        file.write(f"{line}\n")
    if not rule:
        build.check_imports(sources)
        return
    with pytest.raises(SystemExit, match=f"error {rule}"):
        build.check_imports(sources)


def test_sources_that_are_not_formatted_are_refused(sources: Path) -> None:
    build.install(WEB)
    (sources / "node_modules").symlink_to(WEB / "node_modules")
    build.check_format(sources)
    with (sources / "src" / "api" / "kinds.ts").open("a") as file:
        file.write("export const columns = [" + "120, " * 30 + "];\n")
    with pytest.raises(SystemExit, match=r"kinds\.ts"):
        build.check_format(sources)
