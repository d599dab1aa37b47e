"""Options that the command line hands to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.core.cells import Place


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of ``sluice serve``.

    ``mqtt`` and ``api`` are ``host:port`` to listen on (port 0: any free one); None leaves it to the configuration.
    ``config_files`` are read in their order, the later ones are stronger.
    ``overrides`` are settings given on the command line, by dotted key, as text: the strongest layer.
    ``place`` is the cell that the process is; None for a broker of one process. ``data_dir`` is that of all cells.
    """

    data_dir: Path
    mqtt: str | None = None
    api: str | None = None
    config_files: Sequence[Path] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of ``sluice demo``. ``is_cleaning`` removes what an earlier demo created instead of running one."""

    data_dir: Path
    mqtt: str
    api: str
    opens_browser: bool = True
    is_cleaning: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
