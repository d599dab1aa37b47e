"""What validations and transformations have beside the five verbs: switching on and off, and their counters."""

from __future__ import annotations

from typing import Protocol

from fastapi import APIRouter

from broker.core.objects import ObjectService, Spec
from ui.api.object_routes import ObjectRoutes
from ui.api.objects import Kind

GATES = ("validations", "transforms")
"""The paths of the kinds that are gates."""


class GateService(ObjectService, Protocol):
    """A service of objects that can be switched off and that count."""

    def enable(self, name: str, enabled: bool) -> Spec: ...

    def metrics(self, name: str) -> Spec: ...

    def reset_metrics(self, name: str) -> None: ...


def add_gate(router: APIRouter, kind: Kind, service: GateService) -> None:
    """Add the routes of one kind."""
    one = ObjectRoutes(router, f"/{kind.path}/{{name}}", kind.tag)
    singular, word = kind.singular, kind.singular.lower()
    one.change(":enable", f"enable{singular}", f"Switch a {word} on", lambda name: service.enable(name, True))
    one.change(":disable", f"disable{singular}", f"Switch a {word} off", lambda name: service.enable(name, False))
    one.show("/metrics", f"get{singular}Metrics", f"The counters and rates of a {word}", service.metrics)
    one.act("/metrics:reset", f"reset{singular}Metrics", f"Set the counters of a {word} to zero", service.reset_metrics)
