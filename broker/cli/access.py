"""``sluice access``: rules about who may publish and subscribe to what, and what they would decide."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError
from broker.cli.files import read_text
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

group = typer.Typer(help="Who may publish and subscribe to what.", no_args_is_help=True)


@group.command("check")
def check(
    clientid: Annotated[str, typer.Argument(help="The client identifier.")],
    action: Annotated[str | None, typer.Argument(help="publish or subscribe; left out: connecting.")] = None,
    topic: Annotated[str | None, typer.Argument(help="The topic, or the topic filter.")] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", help="The user name.")] = None,
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Ask for a password and authenticate by it, too.")
    ] = False,
    password_file: Annotated[
        str | None,
        typer.Option("--password-file", help="A file whose first line is the password, or token; - is standard input."),
    ] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Authenticate without a password.")] = False,
    peerhost: Annotated[str | None, typer.Option("--peerhost", help="The address it comes from.")] = None,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="Quality of service.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="A retained message.")] = False,
    attribute: Annotated[list[str] | None, typer.Option("--attr", help="A client attribute, as site=berlin.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Say whether a client would be allowed something, and why. Exit code 7 when it would not.

    Without a password the client is taken as logged in, its names verified.
    """
    from broker.cli.output import print_json

    client: dict[str, Any] = {"clientid": clientid}
    client |= {} if username is None else {"username": username}
    client |= {} if peerhost is None else {"peerhost": peerhost}
    client |= {} if not attribute else {"client_attrs": dict(_pair(text) for text in attribute)}
    if ask_password:
        client["password"] = typer.prompt("Password", hide_input=True, err=True)
    elif password_file is not None:
        client["password"] = (read_text(password_file).splitlines() or [""])[0]
    elif anonymous:
        client["password"] = None
    body: dict[str, Any] = {"client": client}
    if action is not None:
        body |= {"action": action, "topic": topic, "qos": qos, "retain": retain}
    with api_client(url, data_dir) as api:
        found = api.post("/access:check", body)
    if as_json or output == "json":
        print_json(found)
    else:
        _tell(found)
    if not found["allowed"]:
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def _tell(found: dict[str, Any]) -> None:
    from broker.cli.output import print_line

    verdict = "allowed" if found["allowed"] else "denied"
    print_line(f"{verdict}, by {_reason(found)}")
    if withheld := found.get("authorization", {}).get("withheld"):
        print_line(f"not delivered: messages on {' '.join(withheld)}")
    if "facts" in found:
        certain = ", ".join(f"{name}={value}" for name, value in found["facts"].items())
        print_line(f"certain of the client: {certain or 'nothing'}")
    for rule in found.get("rules", ()):
        print_line(f"  {rule['permission']:5} {' '.join(rule['topics'])}  ({rule['source']}: {rule['name']})")


def _reason(found: dict[str, Any]) -> str:
    if found["decided_by"] == "ban":
        ban = found["ban"]
        return f"a ban of the {ban['as']} {ban['who']} until {ban['until']}"
    if found["decided_by"] == "authentication":
        decision = found["authentication"]
        why = f"; {decision['why']}" if decision.get("why") else ""
        return f"authentication ({decision['mechanism'] or 'nobody decides'}: {decision['reason_code']}{why})"
    ruling = found["authorization"]
    words = {
        "superuser": "default: rules do not apply to superusers",
        "none": "default: there are no access rules",
        "no_match": "authorization.no_match: no rule matches",
        "wide": "authorization.deny_wide_subscriptions: no rule allows it",
    }
    return words.get(ruling["source"]) or f"{ruling['source']}: {ruling.get('rule', 'no rule')}"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"{text!r} is no attribute; write it as site=berlin", 2)
    return name, value
