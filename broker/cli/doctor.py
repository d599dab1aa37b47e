"""``sluice doctor``: whether this machine has what Sluice needs; a line for each thing, and what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from broker.cli import exit_codes
from broker.cli.command import Call, api_command
from broker.cli.errors import CommandError
from broker.cli.output import print_columns
from broker.core.errors import SluiceError
from broker.core.process import OTHERS

# The packages that show whether an extra is installed.
EXTRAS = {"kafka": ("aiokafka",), "spark": ("pyspark", "deltalake", "pyiceberg")}
CORE_PACKAGES = (
    "uvloop",
    "rocksdict",
    "pyarrow",
    "sqlglot",
    "jq",
    "fastavro",
    "protobuf",
    "jsonschema-rs",
    "fastapi",
)
PORTS = {"MQTT": ("127.0.0.1", 1883), "the management API": ("127.0.0.1", 18083)}
LEAST_FREE_BYTES = 1024**3
LEAST_OPEN_FILES = 4_096


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. ``state`` is ``ok``, ``note`` (something optional is not there) or ``problem``."""

    what: str
    state: str
    found: str
    advice: str = ""


@api_command(is_local=True)
def doctor(call: Call) -> None:
    """Check whether this machine has what it takes.

    Python, packages, Java, disk, limits, ports. Exit code 7 when something is wrong.
    """
    findings = list(examine(call.data_dir))
    columns = {"": "state", "what": "what", "found": "found", "what to do": "advice"}
    call.show([asdict(finding) for finding in findings], lambda rows: print_columns(rows, columns))
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def examine(data_dir: Path) -> Iterator[Finding]:
    """All checks, in order; none changes anything but the directory for Java's wrapper."""
    checks: tuple[Callable[[Path], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _java,
        _directory,
        _limits,
        _ports,
    )
    for check in checks:
        yield from check(data_dir)


def _python(_: Path) -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")


def _packages(_: Path) -> Iterator[Finding]:
    missing = [name for name in CORE_PACKAGES if _version(name) is None]
    if missing:
        yield Finding(
            "packages", "problem", f"missing: {', '.join(missing)}", "pip install sluicemq"
        )
    else:
        yield Finding(
            "packages", "ok", ", ".join(f"{name} {_version(name)}" for name in CORE_PACKAGES)
        )
    for extra, names in EXTRAS.items():
        absent = [name for name in names if _version(name) is None]
        if absent:
            yield Finding(
                f"extra {extra}",
                "note",
                f"missing: {', '.join(absent)}",
                f"pip install 'sluicemq[{extra}]'",
            )
        else:
            yield Finding(
                f"extra {extra}", "ok", ", ".join(f"{name} {_version(name)}" for name in names)
            )


def _java(data_dir: Path) -> Iterator[Finding]:
    from broker.cli.features import load

    if _version("pyspark") is None:
        return
    try:
        java = load("java")(_cache_dir(data_dir))
    except (SluiceError, CommandError) as error:
        yield Finding("Java", "problem", "none that Spark runs on", str(error))
        return
    except OSError as error:
        yield Finding(
            "Java", "problem", _reason(error), "make the directory of --data-dir writable"
        )
        return
    yield Finding("Java", "ok", f"{java.version}, from {java.origin}, {java.home}")


def _directory(data_dir: Path) -> Iterator[Finding]:
    place = _nearest_existing(data_dir)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            "data directory", "problem", f"{place} is not writable", "name another by --data-dir"
        )
        return
    mode = data_dir.stat().st_mode & 0o777 if data_dir.is_dir() else 0
    if mode & OTHERS:
        text = f"{data_dir.absolute()} has mode {mode:04o}: other users of this machine can read messages"
        yield Finding("data directory", "note", text, f"chmod -R go= {data_dir.absolute()}")
    else:
        yield Finding("data directory", "ok", str(data_dir.absolute()))
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GB free"
    if free < LEAST_FREE_BYTES:
        yield Finding(
            "disk", "problem", text, "free some space, or name another disk by --data-dir"
        )
    else:
        yield Finding("disk", "ok", text)


def _limits(_: Path) -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} (may be raised to {hard})" if hard != resource.RLIM_INFINITY else str(soft)
    if soft < LEAST_OPEN_FILES:
        advice = "a connection takes an open file each; raise the limit: ulimit -n 65536"
        yield Finding("open files", "problem" if soft < 256 else "note", text, advice)
    else:
        yield Finding("open files", "ok", text)


def _ports(_: Path) -> Iterator[Finding]:
    for use, (host, port) in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                advice = f"a broker may be running already (sluice status); else use another port for {use}"
                yield Finding(f"port {port}", "note", _reason(error), advice)
                continue
        yield Finding(f"port {port}", "ok", f"free for {use}")


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cache_dir(data_dir: Path) -> Path:
    """Folder in which Java's wrapper may be written: the data directory if it exists, else the user's cache."""
    if data_dir.is_dir() and os.access(data_dir, os.W_OK):
        return data_dir / "run"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice"


def _nearest_existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
