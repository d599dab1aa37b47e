"""The systemd unit, the Containerfile and the package: what they start and install works, and versions agree."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.session import ROOT
from tests.support.node import TOKEN, eventually
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port

UNIT = (ROOT / "deploy" / "sluice.service").read_text()
COMPOSE = (ROOT / "deploy" / "compose.yaml").read_text()
CONTAINERFILE = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
PACKAGES = ("broker", "rules", "schema_validation", "transforms", "bridges", "ui", "pyspark_sluice")


def _all(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction} (.*)$", CONTAINERFILE, re.M)


def _list(text: str) -> list[str]:
    return [str(word) for word in json.loads(text)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the command of the Containerfile."""
    [command] = [line for line in _all("RUN") if "hatchling build" in line]
    target = tmp_path_factory.mktemp("dist")
    words = [
        {"/build/bin/python": sys.executable, "/dist": str(target)}.get(word, word)
        for word in shlex.split(command)
    ]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, by the command of the Containerfile; its dependencies are those of the tests."""
    environment = tmp_path_factory.mktemp("opt") / "sluice"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    [folder] = environment.glob("lib/python*/site-packages")
    kept = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "dependencies.pth").write_text("\n".join(kept))
    [command] = [line for line in _all("RUN") if "/dist/*.whl" in line]
    words = [{"/opt/sluice/bin/python": str(environment / "bin" / "python"), "/dist/*.whl": str(wheel)}.get(word, word)
             for word in shlex.split(command)]  # fmt: skip
    subprocess.run([*words, "--force-reinstall"], check=True, capture_output=True)
    return environment


def test_wheel_is_typed_and_has_the_version_of_the_changelog(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", headings[1])
    assert f"sluicemq-{version}-" in wheel.name


def test_what_the_container_runs_gets_ready_and_its_health_check_says_so(
    installed: Path, tmp_path: Path
) -> None:
    mqtt, api = free_port(), free_port()
    [entry], [start] = _all("ENTRYPOINT"), _all("CMD")
    [health] = re.findall(r"^HEALTHCHECK .* CMD (.*)$", CONTAINERFILE, re.M)

    def here(words: list[str]) -> list[str]:
        return [word.replace("18083", str(api)) for word in words]

    environ = os.environ | {
        "PATH": f"{installed / 'bin'}:{os.environ['PATH']}",
        "SLUICE_DATA_DIR": str(tmp_path / "data"),
        "SLUICE_API_TOKEN": TOKEN,
    }
    environ.pop("PYTHONPATH", None)

    def check() -> int:
        return subprocess.run(here(_list(health)), env=environ, capture_output=True).returncode

    assert check() != 0
    command = [*here(_list(entry) + _list(start)), "--mqtt", f"127.0.0.1:{mqtt}"]
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=log, stderr=log)
    try:
        eventually(lambda: check() == 0, 120, 0.2)
        modules = subprocess.run(
            [installed / "bin" / "python", "-c", "import broker; print(broker.__file__)"],
            env=environ, cwd=tmp_path, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        assert str(installed) in modules
        page = httpx.get(f"http://127.0.0.1:{api}/overview", verify=NO_TLS, timeout=60)
        files = re.findall(r'"(/assets/[^"]+)"', page.text)
        assert files
        for file in files:
            assert (
                httpx.get(f"http://127.0.0.1:{api}{file}", verify=NO_TLS, timeout=60).status_code
                == 200
            )
    finally:
        broker.terminate()
        assert broker.wait(60) == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_containers_of_the_cluster_are_machines_of_it(tmp_path: Path, name: str) -> None:
    """Their commands, with folders of the test in place of volumes and without the start itself."""
    (tmp_path / "plant").mkdir()
    text = COMPOSE.replace("/plant", str(tmp_path / "plant")).replace("$$", "$")
    machine, founding = [_list(found) for found in re.findall(r"entrypoint: (\[.*\])$", text, re.M)]
    environ = os.environ | {"SLUICE_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"

    def run(words: list[str], *more: str) -> None:
        subprocess.run([*words, *more], env=environ, check=True, cwd=ROOT)

    chown = f" && chown -R sluice {tmp_path / 'plant'}"
    assert chown in founding[-1]
    for _ in range(2):  # it starts with each 'up'
        run([*founding[:-1], founding[-1].replace(chown, "")])
    join, _, serve = machine[-1].partition(" && exec ")
    assert serve.startswith("sluice serve ")
    run([*machine[:-1], join], name)
    config = (tmp_path / "data" / "conf.d" / "cluster.conf").read_text()
    assert f'"machine": "{name}"' in config
    assert f'"address": "{name}:7946"' in config
    assert f'  {name}: {{ <<: *machine, command: ["{name}"], hostname: {name},' in COMPOSE


def test_containerfile_runs_without_rights_and_names_files_that_are_there() -> None:
    assert _all("USER") == ["sluice"]
    assert _all("VOLUME") == ["/var/lib/sluice/data"]
    named = re.findall(r"-r (\S+)", CONTAINERFILE)
    assert named
    assert all((ROOT / name).exists() for name in named)
    assert all(
        "--require-hashes" in line
        for line in _all("RUN")
        if "pip install" in line and "-r " in line
    )


def _settings() -> Iterator[tuple[str, str]]:
    for line in UNIT.splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            yield name, value


def test_systemd_accepts_the_unit(installed: Path, tmp_path: Path) -> None:
    unit = tmp_path / "sluice.service"
    unit.write_text(UNIT.replace("/opt/sluice/bin/sluice", str(installed / "bin" / "sluice")))
    told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (told.returncode, told.stdout + told.stderr) == (0, "")
    scored = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", unit],
        capture_output=True,
        text=True,
    )
    assert scored.returncode == 0, scored.stdout[-500:]
    assert dict(_settings())["UMask"] == "0077"


def test_the_unit_starts_a_command_that_exists(installed: Path) -> None:
    words = shlex.split(dict(_settings())["ExecStart"])
    assert words[0] == "/opt/sluice/bin/sluice"
    told = subprocess.run(
        [installed / "bin" / "sluice", *words[1:], "--help"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr


def test_wheel_has_the_dashboard_and_not_its_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name.removeprefix("ui/web/")
            for name in archive.namelist()
            if name.startswith("ui/web/")
        }
    assert {"dist/index.html", "dist/licences.md", "__init__.py"} <= names
    assert {"docs/README.md", "docs/how-to/dashboard.md", "docs/images/start.png"} <= names
    assert {Path(name).suffix for name in names if name.startswith("docs/")} == {".md", ".png"}
    assert {Path(name).suffix for name in names if name.startswith("dist/assets/")} == {
        ".js",
        ".css",
        ".gz",
    }
    assert not [
        name
        for name in names
        if name.startswith(("src/", "node_modules/")) or name == "package.json"
    ]


def test_sdist_has_the_dashboard_built_from_the_sources_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [packed] = tmp_path.iterdir()
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = (path for path in tmp_path.iterdir() if path.is_dir())
    assert not (unpacked / "ui" / "web" / "node_modules").exists()
    code = "import build; print(build.is_wanted())"
    environ = {name: value for name, value in os.environ.items() if name != "SLUICE_UI"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=unpacked / "ui" / "web",
        env=environ,
        check=True,
        capture_output=True,
    )
    assert done.stdout == b"False\n"
