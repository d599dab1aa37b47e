"""The page of settings."""

from __future__ import annotations

import re
from typing import Final

from broker.app.build import section_models
from broker.config.reference import SettingEntry, describe
from broker.core.kinds import object_sections
from docs.reference_pages.markdown import page, table
from docs.reference_pages.models import in_units

_MODEL: Final = re.compile(r"\b([A-Z]\w+(?:Settings|Backend))\b")


def settings() -> str:
    """Every setting with its default."""
    rows = [
        (f"`{entry.key}`", _type(entry), _default(entry), entry.description)
        for entry in describe(section_models())
    ]
    objects = "\n".join(f"* `{section}`" for section in object_sections())
    return page(
        "Settings",
        "How they are set: [configure](../how-to/configure.md). Durations are `500ms`, `30s`, `15m`, `7d` or a number "
        "of seconds; sizes are `64KB`, `1MB`, `10GB` (powers of 1024) or a number of bytes. A broker reads them when "
        "it starts, and again with `sluice config reload`, which names those that wait for the next start. `NAME` in a "
        "setting is a name of your choice.",
        table(("setting", "type", "default", "meaning"), rows),
        "## Objects in files\n\nObjects that the API makes may also stand in files, fixed by them, at these places "
        "([their members](objects.md)):\n\n" + objects,
    )


def _type(entry: SettingEntry) -> str:
    return _MODEL.sub(lambda found: f"[{found[1]}](objects.md#{found[1].lower()})", entry.type)


def _default(entry: SettingEntry) -> str:
    if entry.default is None:
        return "required"
    return f"`{in_units(entry.default, entry.type)}`"
