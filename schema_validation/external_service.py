"""The verbs a person has for schema registries elsewhere. Their secrets are shown as stars, and stars sent back keep
what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.config.secret_text import has_stars, moved_problem, with_stored
from broker.config.secrets import MASK
from broker.config.spec_problems import parsed
from broker.core.errors import Invalid, Problem
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects, name_problem
from broker.core.schema import ExternalRegistry
from schema_validation.confluent import ConfluentRegistry, ConfluentSpec

_SHOWN = {"cached", "last_error"}
LOCAL = "local"
"""The broker's own registry, which is always there."""


class ExternalService:
    """A ``broker.core.objects.ObjectService`` for registries elsewhere."""

    kind = "schema registry"

    def __init__(self, section: ObjectSection, local: ExternalRegistry) -> None:
        self.registries: dict[str, ExternalRegistry] = {LOCAL: local}
        """All by their names, the broker's own among them."""
        self._objects: OrderedObjects[ConfluentRegistry] = OrderedObjects(self.kind, section, _saved)

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the registries of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                made = ConfluentRegistry(_parsed(spec))
                self._objects.adopt(made.spec.name, made)
                self.registries[made.spec.name] = made
            except Invalid as error:
                problems.append(self._objects.refusal(spec, error))
        return problems

    def list(self) -> Sequence[Spec]:
        return [_shown(registry) for registry in self._objects]

    def get(self, name: str) -> Spec:
        return _shown(self._objects.get(name))

    def create(self, spec: Spec) -> Spec:
        made = _parsed(spec)
        self._objects.check_free(made.name)
        return self._put(made)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a registry; what was learnt from it is forgotten. Secrets sent as stars stay."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        made = _parsed(_with_secrets({**spec, "name": spec.get("name", name)}, _saved(before)))
        if made.name != name:
            raise Invalid("a schema registry keeps its name", [Problem(f"expected {name!r}", "/name")])
        shown = self._put(made)
        before.close()
        return shown

    def delete(self, name: str) -> None:
        self._objects.remove(name).close()
        del self.registries[name]

    def close(self) -> None:
        """Give up all connections."""
        for registry in self._objects:
            registry.close()

    def _put(self, spec: ConfluentSpec) -> Spec:
        made = ConfluentRegistry(spec)
        self._objects.put(spec.name, made)
        self.registries[spec.name] = made
        return _shown(made)


def _parsed(spec: Mapping[str, Any]) -> ConfluentSpec:
    what = "the schema registry cannot be saved"
    made = parsed(ConfluentSpec, spec, what, ignored=_SHOWN)
    if why := name_problem(made.name) or (f"{LOCAL!r} is the broker's own" if made.name == LOCAL else None):
        raise Invalid(what, [Problem(why, "/name")])
    if MASK in _secrets(made.auth).values():
        text = "the stars stand for a secret that is not stored; send the secret itself"
        raise Invalid(what, [Problem(text, "/auth")])
    return made


def _secrets(auth: Any) -> dict[str, str]:
    """The secrets of a way to sign in, by their members."""
    return {name: getattr(auth, name).reveal() for name in ("password", "token") if hasattr(auth, name)}


def _saved(registry: ConfluentRegistry) -> Spec:
    spec = registry.spec.model_dump(mode="json")
    if isinstance(spec["auth"], dict):
        spec["auth"] |= _secrets(registry.spec.auth)
    return spec


def _shown(registry: ConfluentRegistry) -> Spec:
    return {**registry.spec.model_dump(mode="json"), "cached": registry.known, "last_error": registry.last_error}


def _with_secrets(spec: Spec, stored: Spec) -> Spec:
    """What was sent, with stored secrets in place of stars. Raises ``Invalid`` where they would go elsewhere."""
    if has_stars(spec) and str(spec.get("url")).rstrip("/") != stored["url"]:
        raise Invalid("the schema registry cannot be saved", [moved_problem()])
    kept: Spec = with_stored(spec, stored)
    return kept
