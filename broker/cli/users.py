"""``sluice users``: whom the broker itself knows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, hinting
from broker.cli.files import read_text
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.single import remove_one, show_one

NameArgument = Annotated[str, typer.Argument(help="The user's name.")]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", help="A file whose first line is the password; - is standard input."),
]
AskOption = Annotated[bool, typer.Option("--ask", help="Ask for the password on the terminal.")]
Superuser = Annotated[bool | None, typer.Option("--superuser/--no-superuser", help="Whether access rules count not.")]
ClientId = Annotated[str | None, typer.Option("--clientid", help="The only client identifier the user may use.")]
Description = Annotated[str | None, typer.Option("--description", help="Who that is.")]

group = typer.Typer(help="Users that the broker itself knows, and their passwords.", no_args_is_help=True)
_COLUMNS = ("name", "is_superuser", "clientid", "algorithm", "methods", "password_changed_at")
_LIST = "sluice users ls"


@group.command("ls")
def list_users(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List all users by name."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        items = list(client.items("/users"))
    if as_json or output == "json":
        print_json({"items": items, "next": None, "total": len(items), "total_is_estimate": False})
        return
    print_table(_COLUMNS, [[_cell(item.get(column)) for column in _COLUMNS] for item in items])


@group.command("show")
def show_user(
    name: NameArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show one user; nothing of the password is shown."""
    show_one("/users", name, hint=_LIST, url=url, data_dir=data_dir, is_json=as_json or output == "json")


@group.command("add")
def add_user(
    name: NameArgument,
    password_file: PasswordFile = None,
    ask: AskOption = False,
    superuser: Superuser = None,
    clientid: ClientId = None,
    description: Description = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make a user. Without a password one is made and printed, once."""
    password = _password(password_file, ask=ask)
    spec = {"name": name, "password": password, **_members(superuser, clientid, description)}
    with api_client(url, data_dir) as client, hinting(exit_codes.CONFLICT, f"sluice users rotate {name}"):
        made = client.post("/users", {member: value for member, value in spec.items() if value is not None})
    _tell(made, f"user {name} created", as_json=as_json)


@group.command("set")
def change_user(
    name: NameArgument,
    password_file: PasswordFile = None,
    ask: AskOption = False,
    superuser: Superuser = None,
    clientid: ClientId = None,
    description: Description = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Change a user; what is not named stays, also the password."""
    from broker.cli.client import name_path

    password = _password(password_file, ask=ask)
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, _LIST):
        shown = client.get(name_path("/users", name))
        changes = _members(superuser, clientid, description) | ({"password": password} if password else {})
        changed, _ = client.put(name_path("/users", name), shown | changes)
    _tell(changed, f"user {name} changed", as_json=as_json)


@group.command("rotate")
def rotate_password(
    name: NameArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make a new password for a user and print it, once; the old one is void."""
    from broker.cli.client import name_path

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, _LIST):
        made = client.post(f"{name_path('/users', name)}:rotate")
    _tell(made, f"user {name} has a new password", as_json=as_json)


@group.command("rm")
def remove_user(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Remove a user. Connections stay until they end."""
    question, command = f"Remove user {name!r}?", f"sluice users rm {name} --yes"
    remove_one(
        "/users", name, what="user", question=question, command=command, hint=_LIST,
        yes=yes, url=url, data_dir=data_dir, as_json=as_json,
    )  # fmt: skip


@group.command("import")
def import_users(
    file: Annotated[str, typer.Option("-f", "--file", help="JSON or CSV with a heading line; - is stdin.")],
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="Hash algorithm of users without their own. Default: sha256.")
    ] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", help="Rounds of PBKDF2.")] = None,
    salt_position: Annotated[
        str | None, typer.Option("--salt-position", help="prefix or suffix. Default: prefix.")
    ] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Take users with hashes of their passwords from a file, all or none."""
    from broker.cli.output import print_json, print_line

    given = {"algorithm": algorithm, "iterations": iterations, "salt_position": salt_position}
    body = {
        **_import_of(read_text(file), file),
        **{member: value for member, value in given.items() if value is not None},
    }
    with api_client(url, data_dir, timeout_s=300) as client:
        answer = client.post("/users:import", body)
    print_json(answer) if as_json else print_line(f"{answer['imported']:,} users imported")


def _import_of(text: str, file: str) -> dict[str, Any]:
    """The body of an import: a list of users becomes its `users`; the API checks the members of an object."""
    import csv
    import json

    if not text.lstrip().startswith(("[", "{")):
        rows = csv.DictReader(text.splitlines())
        return {"users": [{key: value for key, value in row.items() if value not in (None, "")} for row in rows]}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}", exit_codes.USAGE) from None
    body = value if isinstance(value, dict) else {"users": value}
    if not isinstance(body.get("users"), list):
        raise CommandError(f"{file}: expected a list of users", exit_codes.USAGE)
    return body


def _password(file: str | None, *, ask: bool) -> str | None:
    """A password is no argument: those are seen by everybody on the machine."""
    if file is not None:
        password = (read_text(file).splitlines() or [""])[0]
        if not password:
            raise CommandError(f"the first line of {file} is empty", exit_codes.USAGE)
        return password
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)) if ask else None


def _members(superuser: bool | None, clientid: str | None, description: str | None) -> dict[str, Any]:
    members = {"is_superuser": superuser, "clientid": clientid, "description": description}
    return {member: value for member, value in members.items() if value is not None}


def _tell(user: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    """What was done; a password that was made goes to standard output, alone."""
    from broker.cli.output import print_json, print_line, say

    if as_json:
        print_json(user)
        return
    if "password" not in user:
        print_line(sentence)
        return
    say(f"{sentence}; its password, shown this once:")
    print_line(user["password"])


def _cell(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value
