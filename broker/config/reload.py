"""What differs between two configurations, setting by setting."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from broker.config.model import Settings


def changed_settings(section: str, old: Settings, new: Settings) -> list[str]:
    """The keys of a section that have other values now: ``mqtt.max_packet_size``."""
    return [f"{section}.{key}" for key in _changed(old, new)]


def with_kept(old: Settings, new: Settings, kept: Iterable[str]) -> Settings:
    """The new settings, but for some keys that keep their old values; keys are those of the section itself."""
    return new.model_copy(update={key: getattr(old, key) for key in kept})


def _changed(old: BaseModel, new: BaseModel) -> list[str]:
    keys = []
    names = [*type(new).model_fields, *(old.model_extra or {}), *(new.model_extra or {})]
    for name in dict.fromkeys(names):
        before, after = getattr(old, name, None), getattr(new, name, None)
        if before == after:
            continue
        if isinstance(before, BaseModel) and isinstance(after, BaseModel) and type(before) is type(after):
            keys += [f"{name}.{inner}" for inner in _changed(before, after)]
        else:
            keys.append(name)
    return keys
