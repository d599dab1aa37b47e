"""Python environments of their own, for programs whose packages do not go together with those of the tests."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from tests.support.jars import CACHE


def environment(*packages: str) -> Path:
    """The Python of an environment with these packages, fetched when it is not there."""
    target = CACHE / f"python-{sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    uv, python = Path(sys.executable).with_name("uv"), target / "bin" / "python"
    with (CACHE / "python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            subprocess.run(
                [uv, "venv", "-q", "--clear", "--python", sys.executable, target], check=True
            )
            subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
            (target / "complete").touch()
    return python
