"""gmqtt, fetched once into a directory of its own: its package brings a module ``tests``, which would hide ours."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_VERSION = "0.8.0"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice-tests"
_HOME = _CACHE / f"gmqtt-{_VERSION}"


def load() -> Any:
    """The module ``gmqtt``."""
    if not (_HOME / "gmqtt").is_dir():
        _fetch()
    sys.path.append(str(_HOME))
    try:
        return importlib.import_module("gmqtt")
    finally:
        sys.path.remove(str(_HOME))


def _fetch() -> None:
    """Into place in one step, so that two runs of the tests do not disturb each other."""
    made = _HOME.with_name(f"{_HOME.name}-{os.getpid()}")
    uv = Path(sys.executable).with_name("uv")
    pip = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--target", str(made), f"gmqtt=={_VERSION}"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    shutil.rmtree(made / "tests", ignore_errors=True)
    if not _HOME.exists():
        made.rename(_HOME)
