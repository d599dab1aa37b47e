"""``sluice access check``, and the commands of ``users`` and ``bans`` in addition to the verbs of every kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command, renamed
from broker.cli.config import load_files
from broker.cli.errors import CommandError, hinting
from broker.cli.files import duration_s, pairs, read_text
from broker.cli.objects import show_saved
from broker.cli.output import print_line
from broker.cli.target import running_node
from broker.core.errors import Invalid
from broker.core.kinds import counted
from broker.core.times import rfc3339_of

access = typer.Typer(
    help="Which clients may publish and subscribe to which topics.", no_args_is_help=True
)

UserName = Annotated[str, typer.Argument(help="The user's name.")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file", help="A file whose first line is the password; - is standard input."
    ),
]
AskOption = Annotated[bool, typer.Option("--ask", help="Ask for the password on the terminal.")]
Superuser = Annotated[
    bool | None,
    typer.Option("--superuser/--no-superuser", help="Whether access rules do not apply."),
]
ClientId = Annotated[
    str | None, typer.Option("--client", help="The only client identifier the user may use.")
]
OldClientId = Annotated[str | None, typer.Option("--clientid", hidden=True)]
Description = Annotated[str | None, typer.Option("--description", help="Who the user is.")]
BanKind = Annotated[
    str,
    typer.Argument(
        metavar="BY", help="clientid, username, peerhost, clientid_re, username_re or peerhost_net."
    ),
]
Who = Annotated[str, typer.Argument(help="The identifier, name, address, pattern or network.")]
AccountName = Annotated[str, typer.Argument(help="The account's name.")]
KindsOption = Annotated[
    list[str] | None,
    typer.Option("--kind", help="A resource that may be used, as rules; may be repeated."),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="A filter that topics must be within; may be repeated."),
]
_ROLE_HELP = "viewer, editor, operator or administrator."
_USERS = "sluice users ls"


@command(access, "check")
def check(
    call: Call,
    clientid: Annotated[str, typer.Argument(help="The client identifier.")],
    action: Annotated[
        str | None, typer.Argument(help="publish or subscribe; left out: connecting.")
    ] = None,
    topic: Annotated[str | None, typer.Argument(help="The topic, or the topic filter.")] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", help="The user name.")] = None,
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Ask for a password and authenticate by it, too.")
    ] = False,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            help="A file whose first line is the password, or token; - is standard input.",
        ),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Authenticate without a password.")
    ] = False,
    peerhost: Annotated[
        str | None, typer.Option("--peerhost", help="The address it comes from.")
    ] = None,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="Quality of service.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="A retained message.")] = False,
    attribute: Annotated[
        list[str] | None, typer.Option("--attr", help="A client attribute, as site=berlin.")
    ] = None,
) -> None:
    """Show whether a client would be allowed something, and why. Exit code 7 when it would not.

    Without a password the client counts as logged in, its names verified.
    """
    client: dict[str, Any] = {"clientid": clientid, **_given(username=username, peerhost=peerhost)}
    if attribute:
        client["client_attrs"] = dict(pairs(attribute, "--attr"))
    if ask_password:
        client["password"] = typer.prompt("Password", hide_input=True, err=True)
    elif password_file is not None:
        client["password"] = (read_text(password_file).splitlines() or [""])[0]
    elif anonymous:
        client["password"] = None
    body: dict[str, Any] = {"client": client}
    if action is not None:
        body |= {"action": action, "topic": topic, "qos": qos, "retain": retain}
    verdict = call.api.post("/access:check", body)
    call.show(verdict, _print_verdict)
    if not verdict["allowed"]:
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def _given(**members: Any) -> dict[str, Any]:
    """The members that an option sets."""
    return {name: value for name, value in members.items() if value is not None}


def _print_verdict(answer: dict[str, Any]) -> None:
    print_line(f"{'allowed' if answer['allowed'] else 'denied'}, by {_reason(answer)}")
    if withheld := answer.get("authorization", {}).get("withheld"):
        print_line(f"not delivered: messages on {' '.join(withheld)}")
    if "facts" in answer:
        certain = ", ".join(f"{name}={value}" for name, value in answer["facts"].items())
        print_line(f"certain of the client: {certain or 'nothing'}")
    for rule in answer.get("rules", ()):
        print_line(
            f"  {rule['permission']:5} {' '.join(rule['topics'])}  ({rule['source']}: {rule['name']})"
        )


def _reason(answer: dict[str, Any]) -> str:
    if answer["decided_by"] == "ban":
        ban = answer["ban"]
        return f"a ban of the {ban['as']} {ban['who']} until {ban['until']}"
    if answer["decided_by"] == "authentication":
        decision = answer["authentication"]
        reason = f"; {decision['why']}" if decision.get("why") else ""
        mechanism = decision["mechanism"] or "no authenticator decides"
        return f"authentication ({mechanism}: {decision['reason_code']}{reason})"
    ruling = answer["authorization"]
    words = {
        "superuser": "default: rules do not apply to superusers",
        "none": "default: there are no access rules",
        "no_match": "authorization.no_match: no rule matches",
        "wide": "authorization.deny_wide_subscriptions: no rule allows it",
    }
    return words.get(ruling["source"]) or f"{ruling['source']}: {ruling.get('rule', 'no rule')}"


def add_users(group: typer.Typer) -> None:
    """Add the commands of users in addition to the verbs of every kind."""
    _add_saving(
        group,
        "add",
        "created",
        "Create a user. Without a password one is generated and printed, once.",
        _create,
    )
    _add_saving(
        group,
        "set",
        "changed",
        "Change a user. What is not named stays, also the password.",
        _change,
        known=_USERS,
    )

    @command(group, "rotate", known=_USERS, writes=True)
    def rotate_password(call: Call, name: UserName) -> None:
        """Generate a new password for a user and print it, once. The old one no longer works."""
        changed = call.api.post(f"{name_path('/users', name)}:rotate")
        show_saved(call, changed, f"user {name} has a new password")

    @command(group, "import", timeout_s=300, writes=True)
    def import_users(
        call: Call,
        file: Annotated[
            str, typer.Option("-f", "--file", help="JSON or CSV with a heading line; - is stdin.")
        ],
        algorithm: Annotated[
            str | None,
            typer.Option(
                "--algorithm", help="Hash algorithm of users without their own. Default: sha256."
            ),
        ] = None,
        iterations: Annotated[
            int | None, typer.Option("--iterations", help="Rounds of PBKDF2.")
        ] = None,
        salt_position: Annotated[
            str | None, typer.Option("--salt-position", help="prefix or suffix. Default: prefix.")
        ] = None,
    ) -> None:
        """Import users with hashes of their passwords from a file, all or none."""
        options = _given(algorithm=algorithm, iterations=iterations, salt_position=salt_position)
        answer = call.api.post("/users:import", {**_import_of(read_text(file), file), **options})
        call.show(
            answer, lambda answer: print_line(f"{counted(answer['imported'], 'user')} imported")
        )


def add_accounts(group: typer.Typer) -> None:
    """Add the commands of accounts in addition to the verbs of every kind."""

    @command(group, "add", writes=True)
    def add_account(
        call: Call,
        name: AccountName,
        role: Annotated[str, typer.Option("--role", help=_ROLE_HELP)],
        kinds: KindsOption = None,
        topics: TopicsOption = None,
        password_file: PasswordFile = None,
        ask: AskOption = False,
        description: Annotated[
            str | None, typer.Option("--description", help="Who it belongs to.")
        ] = None,
        stopped: Annotated[
            bool,
            typer.Option(
                "--stopped",
                help="Write to the directory of a node that is not running (--data-dir).",
            ),
        ] = False,
    ) -> None:
        """Create an account. Without a password one is generated and printed, once."""
        members = _given(
            role=role, kinds=kinds or None, topics=topics or None, description=description
        )
        spec = {"name": name, **members, **_password(password_file, ask=ask)}
        saved = (
            _add_to_stopped_node(call.data_dir, spec)
            if stopped
            else call.api.post("/accounts", spec)
        )
        show_saved(call, saved, f"account {name} created")

    @command(group, "set", known="sluice accounts ls", writes=True)
    def set_account(
        call: Call,
        name: AccountName,
        role: Annotated[str | None, typer.Option("--role", help=_ROLE_HELP)] = None,
        kinds: KindsOption = None,
        topics: TopicsOption = None,
        unscoped: Annotated[
            bool, typer.Option("--unscoped", help="Remove the scope of resources and topics.")
        ] = False,
        password_file: PasswordFile = None,
        ask: AskOption = False,
        description: Annotated[
            str | None, typer.Option("--description", help="Who it belongs to.")
        ] = None,
    ) -> None:
        """Change an account. What is not named stays, also the password; a new password ends its sessions."""
        path = name_path("/accounts", name)
        members = _given(
            role=role, kinds=kinds or None, topics=topics or None, description=description
        )
        before = call.api.get(path)
        if unscoped:
            before = {
                member: value
                for member, value in before.items()
                if member not in ("kinds", "topics")
            }
        saved, _ = call.api.put(path, {**before, **members, **_password(password_file, ask=ask)})
        show_saved(call, saved, f"account {name} changed")


def _add_to_stopped_node(data_dir: Path, spec: dict[str, Any]) -> Any:
    """Create an account in the configuration of a node that is not running."""
    if running_node(data_dir) is not None:
        raise CommandError(
            f"the node of {data_dir} is running. Try: the same without --stopped", exit_codes.USAGE
        )
    create = import_module("broker.admin.accounts").create_in_file
    try:
        return create(load_files(None, data_dir), spec)
    except Invalid as error:
        raise CommandError("; ".join(map(str, error.problems)), exit_codes.USAGE) from error


def add_tokens(group: typer.Typer) -> None:
    """Add the commands of ``tokens`` in addition to the verbs of every kind."""

    @command(group, "add", writes=True)
    def add_token(
        call: Call,
        name: Annotated[str, typer.Argument(help="The token's name.")],
        role: Annotated[str | None, typer.Option("--role", help=_ROLE_HELP)] = None,
        kinds: KindsOption = None,
        topics: TopicsOption = None,
        streams: Annotated[
            list[str] | None,
            typer.Option(
                "--stream", help="A stream that it reads, without a role; may be repeated."
            ),
        ] = None,
        expires_in: Annotated[
            str | None,
            typer.Option(
                "--expires-in", metavar="DURATION", help="When it ends, as 90d. Default: never."
            ),
        ] = None,
        description: Annotated[
            str | None, typer.Option("--description", help="The program that uses it.")
        ] = None,
    ) -> None:
        """Create a token with a role, or one that reads streams, and print it, once."""
        ends = (
            None
            if expires_in is None
            else rfc3339_of(
                datetime.now(UTC) + timedelta(seconds=duration_s(expires_in, "--expires-in"))
            )
        )
        options = _given(
            role=role,
            kinds=kinds or None,
            topics=topics or None,
            streams=streams or None,
            expires_at=ends,
            description=description,
        )
        saved = call.api.post("/tokens", {"name": name, **options})
        show_saved(call, saved, f"token {name} created")


def _add_saving(
    group: typer.Typer,
    verb: str,
    done: str,
    help: str,
    save: Callable[[Call, str, dict[str, Any]], Any],
    **how: Any,
) -> None:
    @command(group, verb, help=help, writes=True, **how)
    def save_user(
        call: Call,
        name: UserName,
        password_file: PasswordFile = None,
        ask: AskOption = False,
        superuser: Superuser = None,
        clientid: ClientId = None,
        description: Description = None,
        old_clientid: OldClientId = None,
    ) -> None:
        clientid = renamed(clientid, old_clientid, "--clientid", "--client")
        options = _given(is_superuser=superuser, clientid=clientid, description=description)
        saved = save(call, name, {**_password(password_file, ask=ask), **options})
        show_saved(call, saved, f"user {name} {done}")


def _create(call: Call, name: str, spec: dict[str, Any]) -> Any:
    with hinting(exit_codes.CONFLICT, f"sluice users rotate {name}"):
        return call.api.post("/users", {"name": name, **spec})


def _change(call: Call, name: str, changes: dict[str, Any]) -> Any:
    path = name_path("/users", name)
    changed, _ = call.api.put(path, call.api.get(path) | changes)
    return changed


def _import_of(text: str, file: str) -> dict[str, Any]:
    """The body of an import: a list of users becomes its `users`; the API checks the members of an object."""
    import csv
    import json

    if not text.lstrip().startswith(("[", "{")):
        rows = csv.DictReader(text.splitlines())
        return {
            "users": [
                {key: value for key, value in row.items() if value not in (None, "")}
                for row in rows
            ]
        }
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}", exit_codes.USAGE) from None
    body = value if isinstance(value, dict) else {"users": value}
    if not isinstance(body.get("users"), list):
        raise CommandError(f"{file}: expected a list of users", exit_codes.USAGE)
    return body


def _password(file: str | None, *, ask: bool) -> dict[str, str]:
    """The member `password`, if any. It is not an argument: all users of the machine can see those."""
    if file is not None:
        password = (read_text(file).splitlines() or [""])[0]
        if not password:
            raise CommandError(f"the first line of {file} is empty", exit_codes.USAGE)
        return {"password": password}
    if ask:
        return {
            "password": typer.prompt(
                "Password", hide_input=True, confirmation_prompt=True, err=True
            )
        }
    return {}


def add_bans(group: typer.Typer) -> None:
    """Add creating and lifting a ban by the field that it compares."""

    @command(group, "add", writes=True)
    def add_ban(
        call: Call,
        kind: BanKind,
        who: Who,
        last: Annotated[
            str | None, typer.Option("--for", help="How long, as 10m, 2h, 7d; else forever.")
        ] = None,
        reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
        by: Annotated[str, typer.Option("--by", help="Who bans.")] = "",
    ) -> None:
        """Refuse clients, and disconnect those that are connected."""
        body = {"as": kind, "who": who, "reason": reason, "by": by, "until": _until(last)}
        ban = call.api.post("/bans", body)
        call.show(ban, f"{kind} {who} is banned until {ban.get('until')}")

    @command(group, "rm", known="sluice bans ls", writes=True)
    def remove_ban(call: Call, kind: BanKind, who: Who) -> None:
        """Lift a ban."""
        call.api.delete(name_path(f"/bans/{kind}", who))
        call.show({"removed": [f"{kind}/{who}"]}, f"{kind} {who} is no longer banned")


def _until(last: str | None) -> str:
    if last is None:
        return "infinity"
    try:
        return rfc3339_of(datetime.now(UTC) + timedelta(seconds=duration_s(last, "--for")))
    except OverflowError:
        return "infinity"
