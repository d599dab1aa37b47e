"""An object as it was sent and as it was understood: the first is saved, the second is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from bridges.resource.specs import READ_ONLY
from broker.core.objects import Spec

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Stored(Generic[S]):
    """``raw`` holds secrets as they were sent, and only the members that were given."""

    raw: Spec
    spec: S


def stored_spec(spec: Spec) -> Spec:
    """What is saved of what was sent: members that are only shown are left out."""
    return {name: value for name, value in spec.items() if name not in READ_ONLY}
