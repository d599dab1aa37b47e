"""Backups of a node's files and store, restored in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.admin.backups import Backups
from broker.app.build import section_models
from broker.app.restore import NO_VALUE
from broker.cli import backup as commands
from broker.cli import exit_codes
from broker.cli.main import main
from broker.config.root import load_config
from broker.config.sections import Sections
from broker.config.vault import Vault
from broker.core.clock import SystemClock
from broker.core.errors import Invalid, Unavailable
from broker.core.stream import StreamRecord
from broker.storage.archive import Archive, ArchiveWriter, Manifest
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from tests.ui.api_node import TOKEN, Node, Running

KEY = "a long passphrase"
LINES = """# Written by the management API: a line for each change.
connectors.k = {"name": "k", "type": "http", "url": "http://h/", "headers": {"x": "PLANTED2"}}
actions.a = {"name": "a", "type": "http", "connector": "k", "parameters": {"path": "/?b=PLANTED1"}}
connectors.m = {"name": "m", "type": "mqtt", "server": "h:1", "username": "u", "password": "${secret:s}"}
connectors.old = {"name": "old", "type": "of another release", "password": "PLANTED3"}
authentication = [{"mechanism": "jwt", "secret": "PLANTED4 which has over 32 bytes"}]
mqtt = {"max_subscriptions": 77}
"""
RECORD = StreamRecord(1, "t", b"payload", 1, False, "c")
SHARD = LogShard(16)


@contextmanager
def backups(directory: Path, text: str = LINES) -> Iterator[Backups]:
    """The service on a data directory with these objects, and a secret ``s``."""
    directory.mkdir(exist_ok=True)
    vault = Vault(directory / "secrets.key")
    sealed = vault.seal("s", "PLANTED5")
    vault.keep_key()
    file = directory / "api.hocon"
    if not file.exists():
        secret = {"name": "s", "description": "of s", "updated_at": "", "encrypted": sealed}
        file.write_text(f"{text}secrets.s = {json.dumps(secret)}\n" if text else "")
    store = RocksStore(directory, "os")
    store.commit(
        Batch({SHARD: [RECORD, RECORD]}, {b"retained/a": b"v", b"access/secret": b"PLANTED6"})
    )
    config = load_config(section_models(), data_dir=directory, environ={})
    try:
        yield Backups(
            directory, Sections(config), store, vault, SystemClock(), lambda: config, "n", "0.1.0"
        )
    finally:
        store.close()


def made(service: Backups, file: Path, key: str | None, *, messages: bool = False) -> Archive:
    file.write_bytes(b"".join(service.make(key, messages)))
    return Archive(file, key)


def test_secrets_are_in_no_backup_without_key(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "sluice.conf").write_text("mqtt.max_subscriptions = 1\n")
    (tmp_path / "node" / "files").mkdir()
    (tmp_path / "node" / "files" / "link").symlink_to("/etc/passwd")
    with backups(tmp_path / "node") as service, made(service, tmp_path / "b", None) as archive:
        content = b"".join(data for _, data in archive.data())
        manifest = archive.manifest
    assert b"PLANTED" not in content
    assert {secret.name for secret in manifest.missing_secrets} == {
        "s", "connector-k-headers-x", "authentication-0-secret",
    }  # fmt: skip
    notes = "\n".join(manifest.left_out)
    for text in ("connector 'old'", "URL of action.a.parameters.path", "sluice.conf", "link"):
        assert text in notes
    assert manifest.holds["connectors"] == 3


@pytest.mark.parametrize("messages", [True, False])
def test_a_backup_is_restored_by_the_command(
    tmp_path: Path,
    messages: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(commands.KEY_VARIABLE, KEY)
    with backups(tmp_path / "node", LINES.replace("connectors.old", "# connectors.old")) as service:
        made(service, tmp_path / "b", KEY, messages=messages).__exit__(None, None, None)
    words = ["restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "new")]
    assert main([*words, "--dry-run"]) == 0
    assert not (tmp_path / "new").exists()
    assert main([*words, "--json"]) == 0
    assert '"is_encrypted": true' in capsys.readouterr().out
    new = tmp_path / "new"
    assert (new / "api.hocon").read_bytes() == (tmp_path / "node" / "api.hocon").read_bytes()
    store = RocksStore(new, "os")
    assert [store.get(key) for key in (b"retained/a", b"access/secret")] == [b"v", b"PLANTED6"]
    held = store.range_of(SHARD)
    assert (held.first_offset, held.next_offset) == ((0, 2) if messages else (2, 2))
    assert len(store.read(SHARD, 0, 10)) == (2 if messages else 0)
    store.close()
    assert main(words) == exit_codes.CONFLICT
    assert main([*words, "--replace"]) == 0
    [aside] = new.glob("before-restore-*")
    assert (aside / "api.hocon").exists()


def test_references_get_secrets_without_value(tmp_path: Path) -> None:
    with backups(tmp_path / "node", LINES) as service:
        made(service, tmp_path / "b", None).__exit__(None, None, None)
    new = tmp_path / "new"
    assert main(["restore", str(tmp_path / "b"), "--data-dir", str(new)]) == 0
    config = load_config(section_models(), data_dir=new, environ={})
    objects = {spec["name"]: spec for layer in config.objects["secrets"] for spec in layer.objects}
    assert objects["s"]["description"] == "of s"
    vault = Vault(new / "secrets.key")
    assert {vault.open(name, spec["encrypted"]) for name, spec in objects.items()} == {NO_VALUE}


def test_one_backup_is_made_at_a_time(tmp_path: Path) -> None:
    with backups(tmp_path / "node", "") as service:
        first = service.make(None, False)
        next(first)
        with pytest.raises(Unavailable, match="another backup"):
            next(service.make(None, False))
        first.close()
        assert next(service.make(None, False))


def test_what_cannot_be_backed_up_is_said_first(tmp_path: Path) -> None:
    with backups(tmp_path / "node", "streams = []\n") as service, pytest.raises(Invalid):
        next(service.make(None, False))
    config = load_config(section_models(), data_dir=None, environ={})
    vault = Vault(tmp_path / "key")
    service = Backups(
        tmp_path, Sections(config), MemoryStore(), vault, SystemClock(), lambda: config, "n", "1"
    )
    with pytest.raises(Unavailable):
        next(service.make(None, False))


def _hostile(file: Path, version: str, fill: Callable[[ArchiveWriter], list[bytes]]) -> None:
    archive = ArchiveWriter(None)
    pieces = fill(archive)
    manifest = Manifest(
        format=1, id=archive.id, version=version, node="n", made_at="now", messages=False, holds={}, left_out=[],
        missing_secrets=[], parts=archive.parts,
    )  # fmt: skip
    file.write_bytes(b"".join(pieces) + archive.end(manifest))


def entry(key: bytes, value: bytes) -> bytes:
    return len(key).to_bytes(4, "big") + len(value).to_bytes(4, "big") + key + value


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (lambda archive: [archive.part("file", b"x", "../../tmp/evil")], "not of a data directory"),
        (lambda archive: [archive.part("file", b"x", "/etc/passwd")], "not of a data directory"),
        (
            lambda archive: [archive.part("file", b"x", "files/../../evil")],
            "not of a data directory",
        ),
        (
            lambda archive: [archive.part("file", b"x", "rocksdb/CURRENT")],
            "not of a data directory",
        ),
        (lambda archive: [archive.part("file", b"x", "files/a\0b")], "not of a data directory"),
        (
            lambda archive: [
                archive.part("file", b"x", "files"),
                archive.part("file", b"x", "files/inner"),
            ],
            "damaged",
        ),
        (lambda archive: [archive.part("store", entry(b"k", b"v")[:-1])], "cut off"),
        (lambda archive: [archive.part("store", entry(b"zkey", b"v"))], "not a key"),
        (lambda archive: [archive.part("store", b"\xff" * 100)], "too long"),
        (lambda archive: [archive.part("file", b"mqtt { max_qos = 9 }", "api.hocon")], "max_qos"),
        (lambda archive: [archive.part("file", b"mqtt {", "api.hocon")], "api.hocon"),
    ],
)
def test_a_hostile_backup_changes_nothing(
    tmp_path: Path,
    fill: Callable[[ArchiveWriter], list[bytes]],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "inside" / "data"
    data.mkdir(parents=True)
    (data / "sluice.conf").write_text("own")
    _hostile(tmp_path / "b", "0.1.0", fill)
    assert main(["restore", str(tmp_path / "b"), "--data-dir", str(data), "--replace"]) == 1
    said = capsys.readouterr().err
    assert expected in said
    assert {path.name for path in data.iterdir()} - {"LOCK"} == {"sluice.conf"}
    assert [path.name for path in tmp_path.rglob("evil")] == []


def test_a_backup_of_a_newer_release_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hostile(tmp_path / "b", "99.0.0", lambda _: [])
    assert main(["restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "d")]) == 1
    assert "99.0.0" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_restore_that_cannot_be_moved_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hostile(tmp_path / "b", "0.1.0", lambda archive: [archive.part("file", b"", "api.hocon")])
    data = tmp_path / "data"
    words = ["restore", str(tmp_path / "b"), "--data-dir", str(data), "--replace"]
    assert main(words) == 0
    (data / "api.hocon").write_text("# mine\n")
    rename = Path.rename

    def fail(source: Path, target: Path) -> Path:
        if source.parent.name.startswith("restore-") and source.name == "store.json":
            raise OSError(28, "No space left on device")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", fail)
    assert main(words) == 1
    assert (data / "api.hocon").read_text() == "# mine\n"
    assert not (data / "restoring").exists()


def test_a_key_is_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("short\n")
    words = ["restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "d"), "--key-file"]
    assert main([*words, str(tmp_path / "key")]) == exit_codes.USAGE
    assert "12 to 1,024 characters, got 5" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "none")]) == exit_codes.USAGE


def test_a_command_writes_a_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the real API, which streams it from a thread."""
    with backups(tmp_path / "node", "") as service:
        node = Node()
        node.context.backups = service
        running = Running(node)
        try:
            monkeypatch.setenv("SLUICE_URL", running.url)
            monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
            assert main(["backup", str(tmp_path / "b")]) == 0
            assert "without key" in capsys.readouterr().out
            assert main(["backup", str(tmp_path / "none" / "b")]) == 1
        finally:
            running.stop()
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "b.part").exists()
