"""``sluice export`` and ``sluice apply`` on a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.auth.bans import BY_BROKER
from tests.support.local_node import Done, Node, command, running
from tests.support.node import TOKEN

DECLARED = """
mqtt.max_subscriptions = 77
streams { readings { topics = ["meters/#"] } }
rule_engine.rules {
  warm { sql = "SELECT payload.t AS t FROM \\"meters/#\\"", actions = [ { type = console } ] }
  cold { sql = "SELECT 1 AS one FROM \\"a\\"" }
}
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data") as started:
        yield started


def _run(node: Node, *arguments: str) -> Done:
    return command(*arguments, "--data-dir", str(node.data_dir), SLUICE_API_TOKEN=TOKEN)


def _cli(node: Node, *arguments: str, status: int = 0) -> str:
    done = _run(node, *arguments)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_files_are_applied_and_exported_again(node: Node, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    (wanted / "10-all.conf").write_text(DECLARED)
    node.call("POST", "/rules", {"name": "other", "sql": 'SELECT 2 AS two FROM "b"'})
    node.call("POST", "/schemas", {"name": "kept", "type": "json", "source": "{}"})
    plan = json.loads(_cli(node, "apply", "-f", str(wanted), "--dry-run", "--json", status=9))
    assert {(one["kind"], one["name"], one["change"]) for one in plan["items"]} == {
        ("setting", "mqtt", "change"), ("stream", "readings", "create"), ("rule", "warm", "create"),
        ("rule", "cold", "create"),
    }  # fmt: skip
    assert plan["items"][0]["differences"] == ["mqtt.max_subscriptions: 10000 -> 77"]
    assert node.call("GET", "/streams")["items"] == []
    assert "4 changes applied" in _cli(node, "apply", "-f", str(wanted))
    assert "nothing to change" in _cli(node, "apply", "-f", str(wanted), "--dry-run")
    assert node.call("GET", "/config/mqtt.max_subscriptions")["value"] == 77
    assert "nothing to change" in _cli(node, "apply", "-f", str(wanted), "--prune")
    (wanted / "10-all.conf").write_text(DECLARED.replace("  cold {", "  frozen {"))
    pruned = _cli(node, "apply", "-f", str(wanted), "--prune", "--dry-run", status=9)
    assert "delete rule cold" in pruned
    assert "2 changes applied" in _cli(node, "apply", "-f", str(wanted), "--prune")
    names = {rule["name"] for rule in node.call("GET", "/rules")["items"]}
    assert names == {"other", "warm", "frozen"}
    assert node.call("GET", "/schemas/kept")
    exported = tmp_path / "exported"
    _cli(node, "export", str(exported))
    text = (exported / "sluice.conf").read_bytes()
    assert "nothing to change" in _cli(node, "apply", "-f", str(exported), "--prune")
    _cli(node, "export", str(exported))
    assert (exported / "sluice.conf").read_bytes() == text
    with running(tmp_path / "second") as empty:
        _cli(empty, "apply", "-f", str(exported))
        _cli(empty, "export", str(tmp_path / "again"))
    assert (tmp_path / "again" / "sluice.conf").read_bytes() == text


IDENTITIES = """
users { ann { password = "a long password", is_superuser = true }, "meter/7" { password = "another one" } }
accounts { bo { password = "a password of bo", role = viewer } }
tokens { ci { sha256 = "%s", role = editor, kinds = [rules] } }
secrets { plant { value = "the value", description = "of the plant" } }
bans = [ { as = clientid, who = evil, reason = spam } ]
authentication = [
  { mechanism = builtin }
  { mechanism = jwt, secret = "a secret of thirty-two bytes, or even more" }
]
authorization.sources = [ { type = built_in, enable = false } ]
connectors { peer { type = mqtt, server = "127.0.0.1:9", enable = false, password = "${secret:plant}" } }
"""


def test_identities_are_applied_and_exported_without_what_is_secret(
    node: Node, tmp_path: Path
) -> None:
    file = tmp_path / "identities.conf"
    file.write_text(IDENTITIES % ("ab" * 32))
    said = _cli(node, "apply", "-f", str(file))
    assert "10 changes applied" in said
    assert "nothing to change" in _cli(node, "apply", "-f", str(file), "--prune", "--dry-run")
    assert node.call("GET", "/users/meter%2F7")["methods"]
    assert node.call("GET", "/authentication/jwt")["secret"] == "******"
    exported = tmp_path / "exported"
    _cli(node, "export", str(exported))
    files = [(exported / name) for name in ("sluice.conf", "access.conf")]
    texts = [file.read_bytes() for file in files]
    for planted in (b"a long password", b"the value", b"thirty-two", b"abab", b"sha256"):
        assert [text for text in texts if planted in text] == [], planted
    assert "nothing to change" in _cli(node, "apply", "-f", str(exported), "--prune")
    _cli(node, "export", str(exported))
    assert [file.read_bytes() for file in files] == texts
    changed = IDENTITIES.replace("is_superuser = true", "is_superuser = false")
    changed = changed.replace(', "meter/7" { password = "another one" }', "").replace(
        "spam", "noise"
    )
    file.write_text(changed % ("ab" * 32))
    assert "3 changes applied" in _cli(node, "apply", "-f", str(file), "--prune")
    assert [user["name"] for user in node.call("GET", "/users")["items"]] == ["ann"]
    entries = node.call("GET", "/audit-log?limit=3&name=ann")["items"]
    node.call("POST", f"/audit-log/{entries[0]['id']}:revert")
    assert node.call("GET", "/users/ann")["is_superuser"]
    with running(tmp_path / "second") as empty:
        said = _cli(empty, "apply", "-f", str(exported), status=2)
        assert "user 'ann': expected password" in said or "secret 'plant': expected value" in said
        assert empty.call("GET", "/users")["items"] == []
        file.write_text(IDENTITIES % ("ab" * 32))
        _cli(empty, "apply", "-f", str(file))
        assert "nothing to change" in _cli(empty, "apply", "-f", str(exported))
        _cli(empty, "export", str(tmp_path / "again"))
    again = [(tmp_path / "again" / file.name).read_bytes() for file in files]
    assert again == texts


def test_the_label_of_an_object_goes_with_it(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "identities.conf"
    file.write_text(IDENTITIES % ("ab" * 32))
    _cli(node, "apply", "-f", str(file))
    paths = (
        "users/ann", "accounts/bo", "tokens/ci", "connectors/peer", "secrets/plant", "bans/clientid/evil",
        "authentication/jwt", "authorization/sources/built_in",
    )  # fmt: skip
    owned = {label["id"] for label in node.call("GET", "/applied")["items"]}
    assert set(paths) <= owned
    for path in paths:
        node.call("DELETE", f"/{path}")
    left = {label["id"] for label in node.call("GET", "/applied")["items"]}
    assert left == owned - set(paths)
    # one of the same name that is made by hand is not deleted by a later apply
    node.call("POST", "/bans", {"as": "clientid", "who": "evil"})
    node.call("POST", "/authorization/sources", {"type": "built_in"})
    file.write_text("bans = []\nauthorization.sources = []\nusers {}\n")
    _cli(node, "apply", "-f", str(file), "--prune")
    assert [ban["name"] for ban in node.call("GET", "/bans")["items"]] == ["clientid/evil"]
    assert [row["type"] for row in node.call("GET", "/authorization/sources")["items"]] == [
        "built_in"
    ]


def test_bans_that_the_broker_made_are_not_exported(node: Node, tmp_path: Path) -> None:
    node.call("POST", "/bans", {"as": "clientid", "who": "evil"})
    node.call("POST", "/bans", {"as": "clientid", "who": "flapper", "by": BY_BROKER})
    _cli(node, "export", str(tmp_path / "exported"))
    exported = json.loads((tmp_path / "exported" / "access.conf").read_text())
    assert [ban["who"] for ban in exported["bans"]] == ["evil"]
    assert "nothing to change" in _cli(node, "apply", "-f", str(tmp_path / "exported"), "--prune")
    assert len(node.call("GET", "/bans")["items"]) == 2


def test_a_revert_gives_the_same_export(node: Node, tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text(DECLARED)
    _cli(node, "apply", "-f", str(tmp_path / "a.conf"))
    _cli(node, "export", str(tmp_path / "before"))
    node.call("PUT", "/rules/warm", {"sql": 'SELECT 5 AS five FROM "b"'})
    node.call("DELETE", "/rules/cold")
    node.call("PUT", "/streams/readings", {"topics": ["other/#"]})
    for entry in node.call("GET", "/audit-log?limit=3")["items"]:
        node.call("POST", f"/audit-log/{entry['id']}:revert")
    _cli(node, "export", str(tmp_path / "after"))
    before, after = (tmp_path / name / "sluice.conf" for name in ("before", "after"))
    assert before.read_bytes() == after.read_bytes()


def test_what_cannot_be_applied_is_refused(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "wrong.conf"
    for text, problem in (
        ("rule_engine.rules { hot {} }", "sql"),
        ("mqtt.maximum_qos = 7", "maximum_qos"),
        ("users { a { is_superuser = true } }", "expected password"),
        ("authentication = 5", "list of objects"),
        ("mqtt = {", "wrong.conf"),
        ("rule_engine.rules = 5", "list of objects"),
    ):
        file.write_text(text)
        done = _run(node, "apply", "-f", str(file))
        assert done.returncode not in (0, None), text
        assert problem in done.stdout + done.stderr, done.stderr
    _cli(node, "apply", "-f", str(tmp_path / "missing"), status=2)
    file.write_text('rule_engine.rules { last { sql = "SELECT 2 AS two FROM b" } }')
    _cli(node, "apply", "-f", str(file))
    file.write_text("rule_engine.rules {}")
    assert "delete rule last" in _cli(node, "apply", "-f", str(file), "--prune")
    assert node.call("GET", "/rules")["items"] == []
