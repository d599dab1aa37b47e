"""Connector types by name: their settings, descriptions and constructors. Each is loaded when it is first asked for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from typing_extensions import TypedDict

from bridges.resource.contract import ConnectorType
from broker.core.errors import Invalid, MissingDependency, Problem, did_you_mean


class ConnectorTypeView(TypedDict):
    """A type of connectors. ``problem`` says what must be installed before it can be used, null where nothing.
    ``parameters`` are JSON Schemas of the settings of a connector, an action and a source."""

    name: str
    title: str
    summary: str
    is_installed: bool
    problem: str | None
    parameters: dict[str, dict[str, Any]]


class Registry:
    """``places``: the ``module:NAME`` of each ``ConnectorType``, by type."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._loaded: dict[str, ConnectorType] = {}

    def add(self, kind: ConnectorType) -> None:
        """Take a type as it is: a plugin's, a test's."""
        self._places[kind.name] = ""
        self._loaded[kind.name] = kind

    def names(self) -> Sequence[str]:
        """All types."""
        return sorted(self._places)

    def get(self, type: str) -> ConnectorType:
        """A type that can be used here.

        Raises:
            Invalid: there is no such type, or what it needs is not installed; says which there are, what to install.
        """
        if type not in self._places:
            hint = did_you_mean(type, self._places) or f"there are {', '.join(self.names())}"
            raise Invalid(
                "the connector cannot be used",
                [Problem(f"there is no type {type!r}", "/type", None, None, hint)],
            )
        try:
            kind = self.known(type)
            require(kind)
        except MissingDependency as error:
            raise Invalid(
                "the connector cannot be used", [Problem(str(error), "/type")], code=error.code
            ) from None
        return kind

    async def loaded(self, type: str) -> ConnectorType:
        """The same; what it requires is imported on a thread, as that may take longer than the loop can wait."""
        kind = self.get(type)
        if missing := [module for module in kind.requires if module not in sys.modules]:
            await asyncio.to_thread(lambda: [import_module(module) for module in missing])
        return kind

    def known(self, type: str) -> ConnectorType:
        """A type, whether or not what it needs is installed."""
        if type not in self._loaded:
            module, _, name = self._places[type].partition(":")
            self._loaded[type] = getattr(import_module(module), name)
        return self._loaded[type]

    def described(self) -> Sequence[ConnectorTypeView]:
        """All types for users who choose, with the JSON Schemas of their settings."""
        return [_described(self.known(name)) for name in self.names()]


def require(kind: ConnectorType) -> None:
    """Raise ``MissingDependency`` with the command that installs them, if modules of a type are missing."""
    missing = [module for module in kind.requires if not _is_installed(module)]
    if missing:
        how = (
            f"pip install 'sluicemq[{kind.extra}]'"
            if kind.extra
            else f"pip install {' '.join(missing)}"
        )
        raise MissingDependency(
            f"connectors of type '{kind.name}' need {', '.join(missing)}; install it with: {how}"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _described(kind: ConnectorType) -> ConnectorTypeView:
    try:
        require(kind)
        problem = None
    except MissingDependency as error:
        problem = str(error)
    models = {"connector": kind.connector, "action": kind.action, "source": kind.source}
    return {
        "name": kind.name,
        "title": kind.title,
        "summary": kind.summary,
        "is_installed": problem is None,
        "problem": problem,
        "parameters": {
            role: model.model_json_schema() for role, model in models.items() if model is not None
        },
    }
