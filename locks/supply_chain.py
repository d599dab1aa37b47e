"""Licences, a CycloneDX bill of materials and an audit of the locked packages.

``python -m locks.supply_chain licences|sbom|audit``
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from packaging.markers import Marker

LOCKS: Final = Path(__file__).parent
POLICY: Final[Mapping[str, Any]] = tomllib.loads((LOCKS / "licences.toml").read_text())
AUDIT_S: Final = 30
_PIN: Final = re.compile(
    r"^([a-z0-9._-]+)==(\S+?)(?: ; (.+?))? \\$((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)", re.M
)


@dataclass(frozen=True, slots=True)
class Package:
    """A locked package; ``marker`` says where it is installed."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def is_for_this_machine(self) -> bool:
        """Whether it is installed here."""
        return not self.marker or Marker(self.marker).evaluate()

    @property
    def licence(self) -> str:
        """An SPDX expression: of the list of exceptions, else as the installed package says it."""
        noted = POLICY["noted"].get(self.name)
        return noted["licence"] if noted else _declared(metadata.metadata(self.name))


def locked(name: str) -> list[Package]:
    """The packages of a lock file."""
    text = (LOCKS / name).read_text()
    return [
        Package(found[1], found[2], found[3] or "", tuple(re.findall("[0-9a-f]{64}", found[4])))
        for found in _PIN.finditer(text)
    ]


def _declared(found: Any) -> str:
    expression = found.get("License-Expression") or found.get("License") or ""
    if expression and len(expression) < 60:
        return str(POLICY["spelt"].get(expression, expression))
    kinds = [
        one.rpartition(" :: ")[2]
        for one in found.get_all("Classifier") or ()
        if one.startswith("License")
    ]
    return " AND ".join(POLICY["spelt"].get(kind, kind) for kind in kinds) or "unknown"


def licence_problems() -> Iterator[str]:
    """Packages of ``run.txt`` whose licence is neither accepted nor noted with a reason."""
    for package in locked("run.txt"):
        if package.is_for_this_machine and package.name not in POLICY["noted"]:
            terms = set(
                re.split(r" (?:AND|OR) ", package.licence.replace("(", "").replace(")", ""))
            )
            if terms - set(POLICY["accepted"]):
                yield f"{package.name} {package.version}: {package.licence} is not in locks/licences.toml"


def licences() -> int:
    """Print the licence of each package; 1 when one is not accepted."""
    for package in locked("run.txt"):
        if package.is_for_this_machine:
            print(f"{package.name:28} {package.version:18} {package.licence}")
    problems = list(licence_problems())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def sbom() -> int:
    """Print the bill of materials of the product: CycloneDX 1.6, JSON."""
    project = tomllib.loads((LOCKS.parent / "pyproject.toml").read_text())["project"]
    subject = {"type": "application", "name": project["name"], "version": project["version"],
               "purl": f"pkg:pypi/{project['name']}@{project['version']}"}  # fmt: skip
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{package.name}@{package.version}",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:pypi/{package.name}@{package.version}",
            "licenses": [{"expression": package.licence}],
            "properties": [
                {"name": "sluice:sha256-of-a-file", "value": value} for value in package.hashes
            ],
        }
        for package in locked("run.txt")
        if package.is_for_this_machine
    ]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
                "metadata": {"component": subject}, "components": components}  # fmt: skip
    print(json.dumps(document, indent=1))
    return 0


def audit() -> int:
    """Ask the vulnerability database that uv knows about all locked packages; without an answer, say so and go on."""
    packages = [one for one in locked("dev.txt") if one.is_for_this_machine]
    pins = [f"{one.name}=={one.version}" for one in packages]
    with TemporaryDirectory() as directory:
        project = {
            "name": "audited",
            "version": "0",
            "requires-python": f"=={sys.version.split()[0]}",
        }
        lines = [
            f"{key} = {json.dumps(value)}"
            for key, value in (project | {"dependencies": pins}).items()
        ]
        # What a package needs is locked already: told so, uv asks no index and builds nothing, Spark's 450 MB least.
        for one in packages:
            known = f'name = "{one.name}"\nversion = "{one.version}"\nrequires-dist = []'
            lines += ["[[tool.uv.dependency-metadata]]", known]
        (Path(directory) / "pyproject.toml").write_text("\n".join(["[project]", *lines, ""]))
        command = [sys.executable, "-m", "uv", "audit", "--quiet", "--project", directory]
        try:
            environ = {"UV_HTTP_RETRIES": "0"} | os.environ
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=AUDIT_S, env=environ
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(
                command, 2, "", f"error: no answer within {AUDIT_S} s"
            )
    if done.returncode == 0:
        print(f"audit: no known vulnerability in {len(pins)} packages")
    elif "error:" in done.stderr:
        why = next(line for line in done.stderr.splitlines() if "error:" in line)
        print(f"audit: skipped, the vulnerability database cannot be reached ({why.strip()})")
    else:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    return 0


COMMANDS: Final[Mapping[str, Callable[[], int]]] = {
    "licences": licences,
    "sbom": sbom,
    "audit": audit,
}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]]())
