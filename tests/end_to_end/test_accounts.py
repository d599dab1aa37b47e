"""Accounts: created by command, signed in by name and password, revoked and changed at once."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.support.certificates import Authority
from tests.support.local_node import Node, command, running, sluice
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import running as running_process
from tests.support.plain_http import NO_TLS

QUIET = "overload.enable = false\n"
PASSWORD = "a long password"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node"), config=QUIET) as node:
        yield node


def accounts(node: Node, *words: str, text: str = "") -> str:
    """Standard output of a command of accounts that must succeed."""
    done = sluice(node, "accounts", *words, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def browser(node: Reachable) -> httpx.Client:
    """A client that behaves as the dashboard: it keeps cookies and sends its origin."""
    return httpx.Client(
        base_url=node.url, headers={"Origin": node.url}, verify=NO_TLS, timeout=60, trust_env=False
    )


def sign_in(client: httpx.Client, name: str, password: str = PASSWORD) -> httpx.Response:
    return client.post("/api/v1/session", json={"name": name, "password": password})


def create(node: Reachable, name: str, **spec: Any) -> None:
    node.call("POST", "/accounts", {"name": name, "password": PASSWORD, "role": "viewer", **spec})


def test_a_person_signs_in_and_has_the_rights_of_the_role(node: Node) -> None:
    create(node, "ann", role="operator", kinds=["clients", "jobs"])
    with browser(node) as page:
        assert sign_in(page, "ann").status_code == 204
        mine = page.get("/api/v1/me").json()
        assert (mine["name"], mine["role"], mine["kinds"]) == (
            "ann",
            "operator",
            ["clients", "jobs"],
        )
        assert page.get("/api/v1/clients").status_code == 200
        refused = page.put("/api/v1/rules/hot", json={"sql": "SELECT 1 FROM 'a'"})
        assert refused.status_code == 403
        assert (
            refused.json()["detail"] == "needs 'change' on 'rules'; your scope is 'clients', 'jobs'"
        )
        entry = node.call("GET", "/audit-log?limit=1")["items"][0]
        assert (entry["actor"], entry["outcome"], entry["origin"]) == (
            "ann",
            "refused",
            "dashboard",
        )
        assert page.delete("/api/v1/session").status_code == 204
        assert page.get("/api/v1/me").status_code == 401


def test_no_answer_and_no_file_has_the_password(node: Node) -> None:
    create(node, "quiet")
    kept = (node.data_dir / "api.hocon").read_text()
    shown = json.dumps([node.call("GET", "/accounts/quiet"), node.call("GET", "/audit-log")])
    for text in (kept, shown, node.log.read_text()):
        assert PASSWORD not in text
    assert "stored_key" in kept
    assert "stored_key" not in shown


def test_a_wrong_name_and_a_wrong_password_look_the_same(node: Node) -> None:
    create(node, "known")
    with browser(node) as page:
        answers = [
            sign_in(page, "known", "wrong password"),
            sign_in(page, "unknown", "wrong password"),
        ]
        assert [answer.status_code for answer in answers] == [401, 401]
        assert len({answer.json()["detail"] for answer in answers}) == 1


def test_deleting_an_account_or_changing_its_password_ends_its_sessions_at_once(node: Node) -> None:
    for change in (("DELETE", None), ("PUT", {"role": "viewer", "password": "another password"})):
        create(node, "leaving")
        with browser(node) as page, live(node, page, "leaving") as channel:
            node.call(change[0], "/accounts/leaving", change[1])
            assert page.get("/api/v1/me").status_code == 401
            assert closing_code(channel) == 4401
        if change[0] == "PUT":
            node.call("DELETE", "/accounts/leaving")


def test_a_new_role_holds_at_once_also_for_an_open_websocket_and_a_tail(node: Node) -> None:
    create(node, "rising")
    with (
        browser(node) as page,
        live(node, page, "rising") as channel,
        page.stream("GET", "/api/v1/topics/tail?filter=%23&seconds=300") as tail,
        httpx.Client(
            cookies=page.cookies, base_url=node.url, verify=NO_TLS, timeout=60, trust_env=False
        ) as other,
    ):
        lines = tail.iter_lines()
        next(lines)
        assert other.get("/api/v1/me").json()["role"] == "viewer"
        node.call("PUT", "/accounts/rising", {"role": "editor"})
        assert other.get("/api/v1/me").json()["role"] == "editor"
        assert closing_code(channel) == 4409
        began_s = time.monotonic()
        assert all(time.monotonic() - began_s < 30 for _ in lines)


@contextmanager
def live(node: Node, page: httpx.Client, name: str) -> Iterator[Any]:
    """An open live channel of a page that is signed in, which has shown something."""
    assert sign_in(page, name).status_code == 204
    cookie = "; ".join(f"{key}={value}" for key, value in page.cookies.items())
    url = f"{node.url.replace('http', 'ws')}/api/v1/live"
    with connect(
        url, origin=Origin(node.url), additional_headers={"Cookie": cookie}, proxy=None
    ) as channel:
        channel.send(
            json.dumps({"kind": "subscribe", "id": "s", "channel": "status", "parameters": {}})
        )
        assert json.loads(channel.recv(timeout=30))["kind"] == "snapshot"
        yield channel


def closing_code(channel: Any) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        _read_to_the_end(channel)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def _read_to_the_end(channel: Any) -> None:
    while True:
        channel.recv(timeout=30)


def test_a_live_channel_shows_what_the_role_and_scope_permit(node: Node) -> None:
    create(node, "watcher", kinds=["rules", "messages"], topics=["plant/#"])
    with browser(node) as page, live(node, page, "watcher") as channel:
        cases = [
            ("lists", {"kind": "rules"}, True),
            ("lists", {"kind": "schemas"}, False),
            ("object", {"kind": "users", "name": "x"}, False),
            ("alarms", {}, False),
            ("tail", {"filter": "plant/a"}, True),
            ("tail", {"filter": "#"}, False),
        ]
        for number, (name, parameters, is_allowed) in enumerate(cases):
            frame = {
                "kind": "subscribe",
                "id": f"c{number}",
                "channel": name,
                "parameters": parameters,
            }
            channel.send(json.dumps(frame))
            answer = next(
                answer
                for answer in iter(lambda: json.loads(channel.recv(timeout=30)), None)
                if answer["ch"] == f"c{number}"
            )
            assert answer["kind"] == ("snapshot" if is_allowed else "error"), (
                name,
                parameters,
                answer,
            )
            assert is_allowed or answer["data"]["code"] == "forbidden"


def test_guessing_is_refused_after_a_few_attempts_and_stalls_nobody(node: Node) -> None:
    create(node, "guessed")

    def guess(number: int) -> int:
        with browser(node) as page:
            return sign_in(page, "guessed", f"wrong password {number}").status_code

    asked = 0
    with ThreadPoolExecutor(8) as threads, node.client() as other:
        answers = [threads.submit(guess, number) for number in range(24)]
        while not all(answer.done() for answer in answers):
            assert other.get("/status").status_code == 200
            asked += 1
    assert asked > 2 * len(answers)  # one that waits for each guess would get one answer for each
    statuses = [answer.result() for answer in answers]
    assert set(statuses) <= {401, 429, 503}
    assert 429 in statuses
    with browser(node) as page:
        assert sign_in(page, "guessed").status_code == 429


def test_sessions_are_kept_over_a_restart_and_bounded_in_number(tmp_path: Path) -> None:
    with running_process(tmp_path / "node", config=QUIET) as node:
        create(node, "bo")
        pages = [browser(node) for _ in range(34)]
        for page in pages:
            assert sign_in(page, "bo").status_code == 204
        statuses = [page.get("/api/v1/me").status_code for page in pages]
        assert statuses == [401] * 2 + [200] * 32
        node.kill()
        node.start()
        assert pages[-1].get("/api/v1/me").json()["name"] == "bo"
        for page in pages:
            page.close()


def test_the_first_account_is_made_by_command_on_a_running_and_on_a_stopped_node(
    tmp_path: Path,
) -> None:
    stopped = ["accounts", "add", "root", "--role", "administrator", "--stopped"]
    data_dir = tmp_path / "node"
    with running(data_dir, config=QUIET) as node:
        password = accounts(node, "add", "first", "--role", "administrator")
        assert len(password) == 43
        done = command(*stopped, "--data-dir", str(data_dir))
        assert done.returncode == 2
        assert "is running" in done.stderr
        accounts(node, "set", "first", "--role", "viewer", "--kind", "rules")
        assert node.call("GET", "/accounts/first")["kinds"] == ["rules"]
        accounts(node, "set", "first", "--unscoped")
        assert "kinds" not in node.call("GET", "/accounts/first")
        with browser(node) as page:
            assert sign_in(page, "first", password).status_code == 204
    done = command(
        *stopped, "--data-dir", str(data_dir), "--password-file", "-", text=f"{PASSWORD}\n"
    )
    assert done.returncode == 0, done.stderr
    with running(data_dir, config=QUIET) as node, browser(node) as page:
        assert sign_in(page, "root").status_code == 204
        assert page.get("/api/v1/me").json()["role"] == "administrator"
        eventually(
            lambda: (
                {item["name"] for item in node.call("GET", "/accounts")["items"]}
                == {"first", "root"}
            )
        )


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "short", "role": "viewer", "password": "short"},
        {"name": "administrator", "role": "viewer"},
        {"name": "none"},
        {"name": "odd", "role": "root"},
        {
            "name": "slow",
            "role": "viewer",
            "credentials": [{"algorithm": "pbkdf2_sha256", "iterations": 10**9}],
        },
    ],
)
def test_an_account_that_cannot_work_is_refused(node: Node, spec: dict[str, Any]) -> None:
    assert node.call("POST", "/accounts", spec, expect=422)["errors"]


def test_metrics_need_a_token_where_that_is_set(tmp_path: Path) -> None:
    with running(tmp_path / "node", config=f"{QUIET}api.metrics = token\n") as node:
        scraper = node.call(
            "POST", "/tokens", {"name": "scraper", "role": "viewer", "kinds": ["metrics"]}
        )["token"]
        other = node.call(
            "POST", "/tokens", {"name": "other", "role": "viewer", "kinds": ["rules"]}
        )["token"]
        with httpx.Client(base_url=node.url, verify=NO_TLS, timeout=60, trust_env=False) as client:
            assert client.get("/metrics").status_code == 401
            refused = client.get("/metrics", headers={"Authorization": f"Bearer {other}"})
            assert (refused.status_code, refused.json()["detail"]) == (
                403,
                "needs 'read' on 'metrics'; your scope is 'rules'",
            )
            text = client.get("/metrics", headers={"Authorization": f"Bearer {scraper}"})
            assert text.status_code == 200
            assert "# TYPE" in text.text


def test_the_api_speaks_tls_and_takes_a_renewed_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("api", {"CN": "api"}, ["127.0.0.1"])
    config = f'{QUIET}api.certfile = "{files.cert}"\napi.keyfile = "{files.key}"\n'
    data_dir = tmp_path / "node"
    with running(data_dir, config=config) as node:
        url = f"https://127.0.0.1:{node.api[1]}"

        def served() -> str:
            context = ssl.create_default_context(cafile=str(authority.file))
            with (
                socket.create_connection(node.api, timeout=30) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as secured,
            ):
                return hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()

        trusting = ssl.create_default_context(cafile=str(authority.file))
        with httpx.Client(base_url=url, verify=trusting, timeout=60, trust_env=False) as client:
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            assert (
                client.post("/api/v1/accounts", json={"name": "ann", "role": "viewer"}).status_code
                == 201
            )
            cookie = client.post("/api/v1/session", json={"token": TOKEN}, headers={"Origin": url})
            assert "Secure" in cookie.headers["set-cookie"]
        before = served()
        renewed = authority.sign("renewed", {"CN": "api"}, ["127.0.0.1"])
        files.key.write_bytes(renewed.key.read_bytes())
        files.cert.write_bytes(renewed.cert.read_bytes())
        eventually(lambda: served() != before)
        listed = command("accounts", "ls", "--data-dir", str(data_dir), SLUICE_API_TOKEN=TOKEN)
        assert "ann" in listed.stdout, listed.stderr


def test_a_certificate_that_cannot_be_used_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "sluice.conf").write_text(
        'api.certfile = "/no/such.pem"\napi.keyfile = "/no/such.key"\n'
    )
    words = ["serve", "--data-dir", str(tmp_path / "node"), "--mqtt", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", *words],
        capture_output=True,
        text=True,
        env={"SLUICE_API_TOKEN": TOKEN},
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "api.certfile" in done.stderr
    assert "/no/such.pem" in done.stderr
    assert "Traceback" not in done.stderr
