"""The verbs of topic rewrites: those of every object, and a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from broker.admin.spec_objects import SpecObjects
from broker.config.model import Settings
from broker.config.spec_problems import parsed
from broker.core.client import Client
from broker.core.errors import Invalid, PeerError, Problem
from broker.core.objects import ObjectSection
from broker.routing.rewrite import Rewrites, RewriteSpec, UnsafeName


class RewriteTrial(Settings):
    """A topic or filter to try, and the client that names it; ``rewrites`` are used in place of the saved ones."""

    topic: str
    action: Literal["publish", "subscribe"] = "publish"
    clientid: str = "client"
    username: str | None = None
    client_attrs: dict[str, str] = Field(default_factory=dict)
    rewrites: list[dict[str, Any]] | None = None


class RewrittenTopic(TypedDict):
    """The rewritten topic or filter, and the name of the rewrite that changes it, null where none does."""

    topic: str
    rewrite: str | None


class RewriteService(SpecObjects[RewriteSpec]):
    """Topic rewrites in their order."""

    def __init__(self, section: ObjectSection, rewrites: Rewrites) -> None:
        super().__init__("rewrite", section, RewriteSpec, rewrites.use)
        self._in_force = rewrites

    def test(self, body: Mapping[str, Any]) -> RewrittenTopic:
        """Rewrite a topic or filter.

        Raises:
            Invalid: it cannot be tried, or a client that says so is refused.
        """
        trial = parsed(RewriteTrial, body, "this cannot be tried")
        rewrites = (
            self._in_force
            if trial.rewrites is None
            else _of([self._compiled(spec) for spec in trial.rewrites])
        )
        client = Client(trial.clientid, trial.username, attributes=trial.client_attrs)
        try:
            topic, name = rewrites.try_on(trial.action, trial.topic, client)
        except (PeerError, UnsafeName) as error:
            raise Invalid("such a packet is refused", [Problem(str(error), "/topic")]) from None
        return {"topic": topic, "rewrite": name}


def _of(specs: list[RewriteSpec]) -> Rewrites:
    rewrites = Rewrites(lambda: None)
    rewrites.use(specs)
    return rewrites
