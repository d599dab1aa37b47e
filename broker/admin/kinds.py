"""Share groups, listeners and tokens."""

from __future__ import annotations

from broker.core.kinds import EVERY_VERB, Abilities, Kind, Switch

_NET = "broker.net.settings"
KINDS = (
    Kind(
        name="share group",
        path="groups",
        section=None,
        models=("broker.admin.groups:GroupSpec",),
        view="broker.admin.groups:GroupView",
        row="broker.admin.groups:GroupRow",
        about="Subscribers of one `$share/NAME/FILTER`. One that was created keeps messages while it has no members.",
        tag="Share groups",
        columns=("group", "strategy", "durable", "members", "connected", "waiting", "inflight", "redelivered"),
        abilities=Abilities(verbs=EVERY_VERB - {"put"}),
        named_by="group",
        has_any_name=True,
        word="group",
        deletion="Messages that wait for it are discarded. A group with members ends with the last of them.",
    ),
    Kind(
        name="listener",
        path="listeners",
        section=None,
        models=tuple(f"{_NET}:{name}ListenerSettings" for name in ("", "Ssl", "Ws", "Wss")),
        view="broker.admin.listeners:ListenerView",
        row="broker.admin.listeners:ListenerRow",
        about="An address that clients connect to.",
        tag="Listeners",
        columns=("id", "state", "address", "zone", "connections", "max_connections", "certificate_expires"),
        abilities=Abilities(
            verbs=frozenset(("delete",)),
            can_patch=True,
            switches=(
                Switch("start", "started", "Open {} that was stopped.", lambda service, name: service.start(name)),
                Switch(
                    "stop",
                    "stopped",
                    "Close {} until it is started again or the broker restarts.",
                    lambda service, name, **options: service.stop(name, **options),
                    drains=True,
                ),
                Switch(
                    "restart",
                    "restarted",
                    "Close {} and open it again, with its settings.",
                    lambda service, name, **options: service.restart(name, **options),
                    drains=True,
                ),
            ),
        ),
        named_by="id",
        has_any_name=True,
        deletion="Its connections are closed, unless they are to drain.",
    ),
    Kind(
        name="token",
        path="tokens",
        section="tokens",
        models=("broker.admin.tokens:TokenSpec",),
        view="broker.admin.tokens:TokenView",
        about="Lets a program read the records of some streams, and nothing else. It is in the answer that creates it "
        "only.",
        tag="Access",
        columns=("name", "streams", "expires_at", "is_expired", "description"),
        deletion="Programs that use it are refused from then on.",
    ),
)
