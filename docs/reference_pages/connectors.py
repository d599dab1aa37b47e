"""The page of connector types: the settings of each, of its actions and of its sources."""

from __future__ import annotations

from typing import Final

from bridges.feature import BUILT_IN
from bridges.resource.contract import ConnectorType
from bridges.resource.registry import Registry
from docs.reference_pages.markdown import page, table
from docs.reference_pages.models import Model, described, in_units, parts

_MEANINGS: Final = {"mechanism": "Says which of the kinds this is."}
_DIRECTIONS: Final = ("connector", "action", "source")


def connectors() -> str:
    """Every type that is built in."""
    registry = Registry(BUILT_IN)
    kinds = [registry.known(name) for name in registry.names()]
    rows = [
        (f"[`{kind.name}`](#{_anchor(kind.title)})", _directions(kind), kind.summary)
        for kind in kinds
    ]
    return page(
        "Connectors",
        "What connectors, actions and sources of each type are made of. What they all have, `resource_opts` among it, "
        "stands under [objects](objects.md#connector); how they are used: [bridges](../how-to/bridges.md). A running "
        "broker tells the same with `sluice connectors types`. Templates are filled from the row: `${temp}`, "
        "`${payload.temp}`, `${.}` for all of it.",
        table(("type", "has", "what it does"), rows),
        *(f"## {kind.title}\n\n{_kind(kind)}" for kind in kinds),
    )


def _kind(kind: ConnectorType) -> str:
    told: set[Model] = set()
    models = [(what, model) for what in _DIRECTIONS if (model := getattr(kind, what)) is not None]
    prefix = f"{kind.name}-"
    sections = [_overview(kind)]
    for what, model in models:
        where = "beside `name` and `type`" if what == "connector" else "in `parameters`"
        sections.append(
            f"### `{kind.name}`: {what}\n\nStand {where}. {described(model, _MEANINGS, prefix)}"
        )
    for _, model in models:
        for part in parts(model):
            if part not in told:
                told.add(part)
                sections.append(
                    f"#### `{kind.name}` {part.__name__}\n\n{described(part, _MEANINGS, prefix)}"
                )
    return "\n\n".join(sections)


def _overview(kind: ConnectorType) -> str:
    needs = ", ".join(f"`{module}`" for module in kind.requires)
    is_extra = f"Needs {needs}: `pip install 'sluicemq[{kind.extra}]'`."
    installed = is_extra if kind.extra else "Needs nothing more installed."
    if kind.action is None:
        return f"{kind.summary} {installed}"
    batch_time = in_units(str(kind.batch_time_s), "duration")
    return (
        f"{kind.summary} {installed} Defaults of an action's `resource_opts` that are the type's: "
        f"`batch_size` {kind.batch_size}, `batch_time` {batch_time}, `worker_pool_size` {kind.lanes}."
    )


def _directions(kind: ConnectorType) -> str:
    return ", ".join(what for what in _DIRECTIONS[1:] if getattr(kind, what) is not None)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
