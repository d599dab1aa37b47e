"""``sluice backup`` and ``sluice restore``: all that a node has saved, as one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.cli import exit_codes
from broker.cli.command import LONG_S, Call, api_command
from broker.cli.errors import CommandError
from broker.cli.output import print_line
from broker.core.kinds import counted

if TYPE_CHECKING:
    from broker.storage.archive import Archive

# Environment variable with the passphrase.
KEY_VARIABLE: Final = "SLUICE_BACKUP_KEY"
# Length of a passphrase in characters, as the API takes it.
_LEAST_CHARACTERS: Final = 12
_MOST_CHARACTERS: Final = 1024
_SHOWN: Final = 20

_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="A file with the passphrase; - is standard input. Default: SLUICE_BACKUP_KEY.",
    ),
]


@api_command(timeout_s=LONG_S)
def backup(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    key_file: _KeyFile = None,
    with_messages: Annotated[
        bool,
        typer.Option(
            "--with-messages",
            help="Also records of streams, and messages in queues and sessions.",
        ),
    ] = False,
) -> None:
    """Write a backup of a running node to FILE, for 'sluice restore'.

    With a key all of it is encrypted. Without one, secrets are left out, and references are in their place.
    """
    key = _key(key_file)
    unfinished = file.with_name(f"{file.name}.part")
    body = {"messages": with_messages} | ({} if key is None else {"key": key})
    try:
        unfinished.unlink(missing_ok=True)  # its mode, or what it links to, may be another's
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            for piece in call.api.download("/backup", body):
                opened.write(piece)
            opened.flush()
            os.fsync(opened.fileno())
        archive = _opened(unfinished, key)
        with archive:
            answer = _described(archive) | {"file": str(file), "bytes": unfinished.stat().st_size}
        unfinished.replace(file)
    except OSError as error:
        raise CommandError(
            f"{file} cannot be written ({(error.strerror or str(error)).lower()})"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    call.show(answer, lambda _: _print(answer, f"{file}: {answer['bytes']:,} bytes"))


@api_command(is_local=True)
def restore(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of 'sluice backup'.")],
    key_file: _KeyFile = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace the data of another broker, which is kept in a folder."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all of it, and change nothing.")
    ] = False,
) -> None:
    """Restore a backup into the data directory of a broker that does not run: all of it, or nothing."""
    from broker.app.restore import restore as restored
    from broker.core.errors import Conflict
    from broker.core.process import keep_files_private

    keep_files_private()
    with _opened(file, _key(key_file)) as archive:
        try:
            aside = restored(
                archive, call.data_dir.resolve(), os.environ, replace=replace, dry_run=dry_run
            )
        except Conflict as error:
            raise CommandError(str(error), exit_codes.CONFLICT) from error
        answer = _described(archive) | {
            "dry_run": dry_run,
            "data_dir": str(call.data_dir),
            "moved_to": None if aside is None else str(aside),
        }
    text = f"{call.data_dir}: {'the backup can be restored' if dry_run else 'restored'}"
    call.show(answer, lambda _: _print(answer, text))


def _opened(file: Path, key: str | None) -> Archive:
    from broker.storage.archive import Archive, BackupUnusable

    try:
        return Archive(file, key)
    except BackupUnusable as error:
        raise CommandError(str(error)) from error


def _key(file: Path | None) -> str | None:
    """The passphrase, or None."""
    place = KEY_VARIABLE if file is None else f"--key-file {file}"
    try:
        if file is None:
            text = os.environ.get(KEY_VARIABLE)
        else:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "not text").lower()
        raise CommandError(f"{place} cannot be read ({reason})", exit_codes.USAGE) from error
    key = None if text is None else text.strip()
    if key is not None and not _LEAST_CHARACTERS <= len(key) <= _MOST_CHARACTERS:
        raise CommandError(
            f"{place}: expected {_LEAST_CHARACTERS} to {_MOST_CHARACTERS:,} characters, got {len(key)}",
            exit_codes.USAGE,
            hint="openssl rand -base64 32",
        )
    return key


def _described(archive: Archive) -> dict[str, Any]:
    manifest = archive.manifest
    return {
        "node": manifest.node,
        "version": manifest.version,
        "made_at": manifest.made_at,
        "is_encrypted": bool(manifest.salt),
        "messages": manifest.messages,
        "holds": manifest.holds,
        "left_out": manifest.left_out,
        "missing_secrets": [secret.name for secret in manifest.missing_secrets],
    }


def _print(answer: dict[str, Any], last: str) -> None:
    how = "encrypted" if answer["is_encrypted"] else "without key: secrets are left out"
    print_line(f"backup of {answer['node']} ({answer['version']}), {answer['made_at']}, {how}")
    for name, number in answer["holds"].items():
        print_line(f"    {number:,} {name}")
    missing = answer["missing_secrets"]
    if missing:
        print_line(f"{counted(len(missing), 'secret')} without a value: sluice secrets put NAME")
        _print_some(missing)
    if answer["left_out"]:
        print_line("left out:")
        _print_some(answer["left_out"])
    if answer.get("moved_to"):
        print_line(f"the data before is in {answer['moved_to']}")
    print_line(last)


def _print_some(lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        print_line(f"    {line}")
    if len(lines) > _SHOWN:
        print_line(f"    and {len(lines) - _SHOWN:,} more")
