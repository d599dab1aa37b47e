"""The verbs a person has for schema registries elsewhere. Their secrets are shown as stars, and stars sent back keep
what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from broker.config.secret_text import has_stars, moved_problem, with_stored
from broker.config.secrets import MASK
from broker.config.spec_problems import parsed
from broker.config.ssrf import AddressGuard
from broker.core.contributor import Contributors
from broker.core.errors import Invalid, NotFound, Problem
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import ObjectVerbs, name_problem
from broker.core.schema import ExternalRegistry, SchemaError, Serde
from schema_validation.confluent import ConfluentRegistry, ConfluentSpec
from schema_validation.service import SchemaService

_SHOWN = {"cached", "last_error"}
# The broker's own registry, which is always there.
LOCAL = "local"


class RegistryReadOnly(TypedDict):
    """Number of a registry's schemas that are cached here, and its last failure."""

    cached: int
    last_error: str | None


class LocalRegistry:
    """The broker's own registry under the name ``local``: the ids that its Confluent API shows."""

    def __init__(self, schemas: SchemaService) -> None:
        self._schemas = schemas

    def serde(self, schema_id: int) -> Serde:
        """The serde of a schema by its global id, of deleted versions too."""
        for _, version in self._schemas.ids.places(schema_id):
            return version.serde
        raise SchemaError(f"no schema here has the id {schema_id}")

    def register(self, subject: str, source: str) -> int:
        """The id of a schema that is registered under this name already."""
        try:
            versions = self._schemas.registry.schema(subject).live
        except NotFound as error:
            raise SchemaError(str(error)) from None
        for version in versions:
            if source in (version.source, version.flat):
                return version.id
        raise SchemaError(f"schema {subject!r} has no version with this source")


class ExternalService(ObjectVerbs[ConfluentRegistry]):
    """A ``broker.core.objects.ObjectService`` for registries elsewhere."""

    kind = "schema registry"

    def __init__(
        self,
        section: ObjectSection,
        schemas: SchemaService,
        guard: AddressGuard,
        contributors: Contributors,
    ) -> None:
        super().__init__(section, _saved)
        self._guard = guard
        self._contributors = contributors
        self.registries: dict[str, ExternalRegistry] = {LOCAL: LocalRegistry(schemas)}
        """All by their names, the broker's own among them."""

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a registry; what was learnt from it is forgotten. Secrets sent as stars stay."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        shown = super().replace(name, _with_secrets(spec, _saved(before)))
        before.close()
        return shown

    def delete(self, name: str) -> None:
        """Forget a registry. Raises ``InUse`` while rules and validations name it."""
        self._objects.check_changeable(name)
        self._contributors.check_unused(self.kind, name)
        before = self._objects.get(name)
        super().delete(name)
        before.close()

    def close(self) -> None:
        """Give up all connections."""
        for registry in self._objects:
            registry.close()

    def _compiled(self, spec: Spec) -> ConfluentRegistry:
        return ConfluentRegistry(_parsed(spec), self._guard)

    def _changed(self) -> None:
        """Rules look registries up on threads too: none that stays is missing in between."""
        self.registries |= {registry.name: registry for registry in self._objects}
        for name in self.registries.keys() - {LOCAL, *self._objects.names()}:
            del self.registries[name]

    def _shown(self, item: ConfluentRegistry) -> Spec:
        return {
            **item.spec.model_dump(mode="json"),
            "cached": item.known,
            "last_error": item.last_error,
        }


def _parsed(spec: Mapping[str, Any]) -> ConfluentSpec:
    headline = "the schema registry cannot be saved"
    parsed_spec = parsed(ConfluentSpec, spec, headline, ignored=_SHOWN)
    if problem := name_problem(parsed_spec.name) or (
        f"{LOCAL!r} is the broker's own" if parsed_spec.name == LOCAL else None
    ):
        raise Invalid(headline, [Problem(problem, "/name")])
    if MASK in _secrets(parsed_spec.auth).values():
        text = "the stars stand for a secret that is not stored; send the secret itself"
        raise Invalid(headline, [Problem(text, "/auth")])
    return parsed_spec


def _secrets(auth: Any) -> dict[str, str]:
    """The secrets of a way to sign in, by their members."""
    return {
        name: getattr(auth, name).written for name in ("password", "token") if hasattr(auth, name)
    }


def _saved(registry: ConfluentRegistry) -> Spec:
    spec = registry.spec.model_dump(mode="json")
    if isinstance(spec["auth"], dict):
        spec["auth"] |= _secrets(registry.spec.auth)
    return spec


def _with_secrets(spec: Spec, stored: Spec) -> Spec:
    """The request body with stored secrets in place of stars. Raises ``Invalid`` where they would go elsewhere."""
    if has_stars(spec) and str(spec.get("url")).rstrip("/") != stored["url"]:
        raise Invalid("the schema registry cannot be saved", [moved_problem()])
    kept: Spec = with_stored(spec, stored)
    return kept
