"""Kinds of access control: access rules, authenticators, sources of access rules, users and bans; failed logins."""

from __future__ import annotations

from broker.core.kinds import EVERY_VERB, ORDERED, Abilities, Kind
from broker.core.resources import Command, Resource, Verb

_AUTHENTICATORS = "broker.auth.authenticators"
KINDS = (
    Kind(
        name="access rule",
        path="access/rules",
        section="authorization.rules",
        models=("broker.auth.rules:NamedRuleSettings",),
        about="Rights of clients to publish and subscribe. The first rule that matches a request decides.",
        tag="Access",
        columns=("name", "permission", "who", "action", "topics"),
        abilities=ORDERED,
        command="access rules",
        menu="Administration",
    ),
    Kind(
        name="authenticator",
        path="authentication",
        section=None,
        models=(
            f"{_AUTHENTICATORS}.builtin:BuiltinSettings",
            f"{_AUTHENTICATORS}.cinfo:CinfoSettings",
            f"{_AUTHENTICATORS}.jwt:JwtSettings",
            "broker.auth.backends.http:HttpAuthenticatorSettings",
            "broker.auth.backends.sql:PostgresqlAuthenticatorSettings",
            "broker.auth.backends.sql:MysqlAuthenticatorSettings",
            "broker.auth.backends.redis:RedisAuthenticatorSettings",
            "broker.auth.backends.ldap:LdapAuthenticatorSettings",
        ),
        read_only="broker.auth.jwks:AuthenticatorReadOnly",
        about="Decides about clients that connect. One of each mechanism, asked in order; in files the list "
        "`authentication`.",
        tag="Access",
        columns={"mechanism": "mechanism", "enabled": "enable", "state": "state/backend/status"},
        abilities=ORDERED,
        named_by="mechanism",
        command="access authenticators",
        menu="Administration",
        none_left="No authenticator is left: every client that reaches a listener may connect without a password.",
    ),
    Kind(
        name="source of rules",
        path="authorization/sources",
        section=None,
        models=(
            "broker.auth.authorize:FileSourceSettings",
            "broker.auth.authorize:BuiltInSourceSettings",
            "broker.auth.backends.http:HttpSourceSettings",
            "broker.auth.backends.sql:PostgresqlSourceSettings",
            "broker.auth.backends.sql:MysqlSourceSettings",
            "broker.auth.backends.redis:RedisSourceSettings",
            "broker.auth.backends.ldap:LdapSourceSettings",
        ),
        read_only="broker.auth.jwks:AuthenticatorReadOnly",
        about="Where access rules come from. One of each type, asked in order; in files the list "
        "`authorization.sources`.",
        tag="Access",
        columns={"type": "type", "enabled": "enable", "state": "state/backend/status"},
        abilities=ORDERED,
        named_by="type",
        word="rule source",
        command="access sources",
        menu="Administration",
    ),
    Kind(
        name="user",
        path="users",
        section="users",
        models=("broker.auth.users:UserSpec",),
        view="broker.auth.users:UserView",
        recorded="broker.auth.users:recorded_credentials",
        about="A user that the broker itself knows. A password that is generated is in this answer only.",
        tag="Access",
        columns=("name", "is_superuser", "clientid", "algorithm", "methods", "password_changed_at"),
        has_any_name=True,
        deletion="Its clients are disconnected.",
        menu="Administration",
        reloads=False,
        holds_secrets=True,
    ),
    Kind(
        name="ban",
        area="operations",
        path="bans",
        section=None,
        models=("broker.auth.bans:BanSpec",),
        view="broker.auth.bans:BanView",
        about="Refuses clients by identifier, user name, address or pattern, and disconnects those that are connected.",
        tag="Access",
        columns=("as", "who", "until", "by", "reason"),
        abilities=Abilities(verbs=EVERY_VERB - {"put"}),
        at="each",
        has_any_name=True,
        deletion="Clients that it matched may connect again.",
        menu="Administration",
    ),
)
RESOURCES = (
    Resource(
        name="setting of access rules",
        path="/authorization/settings",
        tag="Access",
        service="access",
        commands="access settings",
        about="Settings of access rules: what holds where no rule matches, and what a denial does.",
        verbs=(
            Verb(
                id="getAuthorizationSettings",
                text="Show the settings of access rules. Sources are not among them.",
                call="authorization",
                answer="broker.admin.access:AuthorizationView",
                command=Command(name="show"),
            ),
            Verb(
                id="setAuthorizationSettings",
                text="Replace the settings of access rules. Members that are left out get their defaults; sources "
                "stay. They apply at once, also to connected clients.",
                at="config",
                call="set_authorization",
                method="PUT",
                body="broker.auth.authorize:AuthorizationOptions",
                body_key="options",
                answer="broker.admin.access:AuthorizationView",
                problems=(409,),
                does="change",
            ),
        ),
    ),
    Resource(
        name="failed login",
        path="/login-failures",
        menu="Administration",
        tag="Access",
        service="access.limits",
        commands="access",
        page="LoginFailure",
        verbs=(
            Verb(
                id="listLoginFailures",
                text="List addresses with failed logins. Returns the addresses from which logins of clients or of the "
                "API failed within `login_limits.window`, at most 1,000, those with the most failures first.",
                at="list",
                merged_by="address",
                call="failures",
                row="broker.auth.login_limits:FailedLogins",
                key="address",
                command=Command(
                    name="failures", columns=("address", "counted", "is_limited", "last_failed_at")
                ),
            ),
        ),
    ),
)
