"""The sample of a configuration file: every setting with its help, commented out, with its default."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import Any, Final

from broker.config.reference import SettingEntry
from broker.config.root import Config
from broker.config.units import duration_text, size_text

_WIDTH: Final = 110
_HEAD: Final = """\
## Every setting with its default, generated from the settings themselves. Copy what you change into sluice.conf:
## lines with one # are settings, lines with two are their help. NAME is a name of your choice.
"""


def sample(defaults: Config) -> str:
    """Every setting there is, with the values of a configuration that sets none."""
    values = defaults.leaves()
    lines = [_HEAD]
    group = ""
    for entry in defaults.describe():
        first, _, _ = entry.key.partition(".")
        if first != group:
            group = first
            lines.append(f"\n## ---- {group} ----\n")
        lines += [f"## {line}\n" for line in wrap(f"{entry.description} [{entry.type}]", _WIDTH)]
        if entry.key in values:
            lines.append(f"# {entry.key} = {_written(entry, values[entry.key])}\n\n")
        else:
            shown = "required" if entry.default is None else entry.default
            lines.append(f"## {entry.key} = {shown}\n\n")
    return "".join(lines).rstrip() + "\n"


def _written(entry: SettingEntry, value: Any) -> str:
    kind, _, _ = entry.type.partition(" ")
    if kind == "duration" and isinstance(value, int | float):
        return duration_text(value)
    if kind == "size" and isinstance(value, int):
        return size_text(value)
    return json.dumps(value, ensure_ascii=False)
