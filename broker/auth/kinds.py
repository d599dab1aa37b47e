"""Who may: access rules, authenticators, and where access rules come from."""

from __future__ import annotations

from broker.core.kinds import ORDERED, Kind

_AUTHENTICATORS = "broker.auth.authenticators"
KINDS = (
    Kind(
        name="access rule",
        path="access/rules",
        section="authorization.rules",
        models=("broker.auth.rules:NamedRuleSettings",),
        about="Who may publish and subscribe to what. The first rule that matches a request decides.",
        tag="Access",
        columns={"name": "name", "permission": "permission", "who": "who", "action": "action", "topics": "topics"},
        abilities=ORDERED,
        command="access rules",
    ),
    Kind(
        name="authenticator",
        path="authentication",
        section=None,
        models=(
            f"{_AUTHENTICATORS}.builtin:BuiltinSettings",
            f"{_AUTHENTICATORS}.cinfo:CinfoSettings",
            f"{_AUTHENTICATORS}.jwt:JwtSettings",
        ),
        about="Decides about clients that connect. One of each mechanism, asked in order; in files the list "
        "`authentication`.",
        tag="Access",
        columns={"mechanism": "mechanism", "enabled": "enable"},
        abilities=ORDERED,
        named_by="mechanism",
        command="access authenticators",
        none_left="No authenticator is left: every client that reaches a listener may connect without a password.",
    ),
    Kind(
        name="source of rules",
        path="authorization/sources",
        section=None,
        models=("broker.auth.authorize:FileSourceSettings", "broker.auth.authorize:BuiltInSourceSettings"),
        about="Where access rules come from. One of each type, asked in order; in files the list "
        "`authorization.sources`.",
        tag="Access",
        columns={"type": "type", "enabled": "enable"},
        abilities=ORDERED,
        named_by="type",
        word="rule source",
        command="access sources",
    ),
)
