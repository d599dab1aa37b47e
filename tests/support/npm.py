"""Packages of npm for tests, fetched once into a cache."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from tests.support.jars import CACHE


def modules(name: str, version: str) -> Path:
    """The directory ``node_modules`` with a package, fetched when it is not there."""
    home = CACHE / f"npm-{name}-{version}"
    home.mkdir(parents=True, exist_ok=True)
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--silent",
        f"{name}@{version}",
    ]
    with (CACHE / f"npm-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            subprocess.run(command, cwd=home, check=True, capture_output=True, timeout=600)
            (home / "complete").touch()
    return home / "node_modules"
