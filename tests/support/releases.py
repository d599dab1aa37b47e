"""Releases to come, as trees of their own: this one, with the changes that a later one may make."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from broker.cluster.frames import OLDEST, PROTOCOL

VERSION: Final = "99.0"
_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = (
    "bridges", "broker", "pyspark_sluice", "rules", "schema_validation", "transforms", "ui",
)  # fmt: skip
_PING: Final = "            FrameType.PING: _ignore,\n"
_IS_UP: Final = "        common.on_link(self)\n"


def later_release(tree: Path, *, oldest: int = OLDEST) -> Path:
    """A release whose links have a frame more, which cells of this one would not know, and say more in HELLO; whose
    machines say more of themselves. It speaks this release's protocol too, unless ``oldest`` is newer."""
    for package in _PACKAGES:
        shutil.copytree(
            _ROOT / package, tree / package, ignore=shutil.ignore_patterns("node_modules", "src")
        )
    _change(
        tree / "broker/cluster/frames.py",
        (f"PROTOCOL: Final = {PROTOCOL}", f"PROTOCOL: Final = {PROTOCOL + 1}"),
        (f"OLDEST: Final = {OLDEST}", f"OLDEST: Final = {oldest}"),
        ("    PING = 17\n", "    PING = 17\n    WEATHER = 18\n"),
        ("    oldest: _Number = 4\n", '    oldest: _Number = 4\n    zone: _Name = "east"\n'),
    )
    _change(
        tree / "broker/cluster/link.py",
        (_PING, _PING + _PING.replace("PING: _ignore", "WEATHER: _heard")),
        (_IS_UP, _IS_UP + "        if self.protocol > 4:\n            self.send(header(FrameType.WEATHER, 0))\n"),
        ("Frame, FrameError,", "Frame, FrameError, header,"),
        ("def _ignore(", "def _heard(_frame: Frame) -> None:\n    _log.info(\"weather.heard\")\n\n\ndef _ignore("),
    )  # fmt: skip
    _change(
        tree / "broker/cluster/keeping.py",
        ("    wants: list[int] = []\n", '    wants: list[int] = []\n    weather: str = "fine"\n'),
    )
    _change(tree / "broker/app/version.py", ('version("sluicemq")', f'"{VERSION}"'))
    return tree


def _change(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for before, after in changes:
        assert text.count(before) == 1, f"{file.name} has {before!r} {text.count(before)} times"
        text = text.replace(before, after)
    file.write_text(text)
