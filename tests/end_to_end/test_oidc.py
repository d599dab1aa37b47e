"""Sign-in by OpenID Connect at a real issuer: oidc-provider, from npm."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from broker.admin.api_settings import OidcSettings
from broker.admin.oidc import Attempt, OidcSignIn
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.clock import SystemClock
from broker.core.errors import Invalid
from tests.support.node import Node
from tests.support.npm import modules
from tests.support.plain_http import NO_TLS
from tests.support.processes import ServerProcess, free_port, is_open

SCRIPT = Path(__file__).parents[1] / "support" / "oidc_provider.mjs"
SECRET = "a secret of the client"


@contextmanager
def issuer(directory: Path, port: int, redirect: str) -> Iterator[ServerProcess]:
    command = ("node", str(SCRIPT), str(modules("oidc-provider", "9.13.3")), str(port), redirect)
    process = ServerProcess(command, directory, lambda: is_open(port))
    process.start()
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def node_with_issuer(directory: Path, port: int, more: str = "") -> Iterator[Node]:
    config = f"""
        overload.enable = false
        api.oidc {{
          issuer = "http://127.0.0.1:{port}"
          client_id = "sluice"
          client_secret = "{SECRET}"
          scopes = ["openid", "profile", "groups"]
          roles {{ sluice-admins = administrator, sluice-operators = operator }}
          label = "Sign in at the plant"
        }}
        {more}
    """
    node = Node(directory / "node", config=config)
    node.mqtt, node.api = ("127.0.0.1", free_port()), ("127.0.0.1", free_port())
    try:
        node.start()
        yield node
    finally:
        node.kill()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, ServerProcess]]:
    directory = tmp_path_factory.mktemp("oidc")
    port = free_port()
    with (
        node_with_issuer(directory, port) as node,
        issuer(directory, port, f"{node.url}/api/v1/session/oidc") as provider,
    ):
        yield node, provider


def browser(node: Node) -> httpx.Client:
    return httpx.Client(
        base_url=node.url, headers={"Origin": node.url}, verify=NO_TLS, timeout=60, trust_env=False
    )


def begin(page: httpx.Client) -> str:
    answer = page.post("/api/v1/session:oidc")
    assert answer.status_code == 200, answer.text
    address: str = answer.json()["url"]
    return address


def return_address(page: httpx.Client, address: str, login: str) -> str:
    """Go through the issuer's pages as a person does; the address of the broker that they lead to."""
    answer = page.get(address)
    for _ in range(20):
        if answer.is_redirect:
            target = urljoin(str(answer.url), answer.headers["location"])
            if urlsplit(target).path == "/api/v1/session/oidc":
                return target
            answer = page.get(target)
            continue
        form = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
        assert form, answer.text[:2000]
        hidden = dict(
            re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', answer.text)
        )
        data = {
            **hidden,
            **({"login": login, "password": "any"} if 'name="login"' in answer.text else {}),
        }
        answer = page.post(urljoin(str(answer.url), html.unescape(form[1])), data=data)
    raise AssertionError("the issuer's pages do not end")


def test_a_person_signs_in_at_the_issuer_and_has_the_role_of_a_group(
    both: tuple[Node, ServerProcess],
) -> None:
    node, _ = both
    with browser(node) as page:
        assert page.get("/api/v1/session").json() == {"oidc": "Sign in at the plant"}
        address = begin(page)
        asked = parse_qs(urlsplit(address).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["response_type"] == ["code"]
        back = return_address(page, address, "ann")
        answer = page.get(back)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        mine = page.get("/api/v1/me").json()
        assert (mine["name"], mine["role"]) == ("oidc:ann", "operator")
        entry = node.call("GET", "/audit-log?limit=1")["items"][0]
        assert (entry["actor"], entry["operation"]) == ("oidc:ann", "signIn")
        again = page.get(back)
        assert again.status_code == 403
        assert "not begun in this browser" in again.text
        refused = node.call("GET", "/audit-log?operation=signIn&outcome=refused")["items"][-1]
        assert (refused["actor"], refused["status"]) == ("not signed in", 403)
        assert "not begun in this browser" in refused["summary"]


def test_a_person_without_a_role_is_refused_with_the_reason(
    both: tuple[Node, ServerProcess],
) -> None:
    node, _ = both
    with browser(node) as page:
        answer = page.get(return_address(page, begin(page), "eve"))
        assert answer.status_code == 403
        assert "has no role here" in html.unescape(answer.text)
        assert page.get("/api/v1/me").status_code == 401


def test_a_state_of_another_browser_and_a_made_up_code_are_refused(
    both: tuple[Node, ServerProcess],
) -> None:
    node, _ = both
    with browser(node) as page, browser(node) as victim:
        back = return_address(page, begin(page), "root")
        begin(victim)
        assert victim.get(back).status_code == 403
        assert victim.get("/api/v1/me").status_code == 401
        state = parse_qs(urlsplit(begin(victim)).query)["state"][0]
        answer = victim.get("/api/v1/session/oidc", params={"state": state, "code": "made-up"})
        assert answer.status_code == 403
        assert "did not accept the code" in answer.text
        assert victim.get("/api/v1/session/oidc").status_code == 403


def test_an_error_of_the_issuer_is_shown_as_text(both: tuple[Node, ServerProcess]) -> None:
    node, _ = both
    with browser(node) as page:
        state = parse_qs(urlsplit(begin(page)).query)["state"][0]
        shown = page.get(
            "/api/v1/session/oidc",
            params={
                "state": state,
                "error": "access_denied",
                "error_description": "<script>x</script>",
            },
        )
        assert shown.status_code == 403
        assert "refused the sign-in" in shown.text
        assert "<script>" not in shown.text


def test_an_issuer_that_is_away_is_one_sentence_and_accounts_still_work(tmp_path: Path) -> None:
    port = free_port()
    with node_with_issuer(tmp_path, port) as node, browser(node) as page:
        answer = page.post("/api/v1/session:oidc")
        assert answer.status_code == 503
        detail = answer.json()["detail"]
        assert f"the issuer http://127.0.0.1:{port} cannot be used now" in detail
        assert "Traceback" not in node.log.read_text()
        node.call(
            "POST", "/accounts", {"name": "ann", "role": "viewer", "password": "a long password"}
        )
        signed_in = page.post(
            "/api/v1/session", json={"name": "ann", "password": "a long password"}
        )
        assert signed_in.status_code == 204
        with issuer(tmp_path, port, f"{node.url}/api/v1/session/oidc"):
            begin(page)


def test_the_guard_of_addresses_holds_for_the_issuer(tmp_path: Path) -> None:
    port = free_port()
    with (
        node_with_issuer(tmp_path, port, "rule_engine.ssrf.enable = true") as node,
        browser(node) as page,
    ):
        answer = page.post("/api/v1/session:oidc")
        assert answer.status_code == 503
        assert "must not be called" in answer.json()["detail"]


# -- the ID token --

KEY = generate_private_key(65537, 2048)
SETTINGS = OidcSettings(
    issuer="https://login.example", client_id="sluice", roles={"admins": "administrator"}
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"exp": -20}, None),
        ({"exp": -60}, "expired"),
        ({"iat": 20}, None),
        ({"iat": 600}, "not yet valid"),
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "other"}, "udience"),
        ({"aud": ["sluice", "other"], "azp": "other"}, "another client"),
        ({"iss": "https://evil.example"}, "ssuer"),
        ({"sub": None}, "sub"),
        ({"exp": None}, "exp"),
    ],
)
def test_an_id_token_is_held_to_issuer_client_nonce_and_clock(
    change: dict[str, Any], reason: str | None
) -> None:
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": SETTINGS.issuer, "aud": "sluice", "sub": "1", "nonce": "n", "exp": now + 300, "iat": now,
        **{name: now + value if name in ("exp", "iat") and value is not None else value
           for name, value in change.items()},
    }  # fmt: skip
    token = jwt.encode(
        {name: value for name, value in claims.items() if value is not None},
        KEY,
        "RS256",
        {"kid": "k"},
    )
    if reason is None:
        assert asyncio.run(_checked(token))["sub"] == "1"
    else:
        with pytest.raises(Invalid, match=reason):
            asyncio.run(_checked(token))


@pytest.mark.parametrize(
    "token", ["", "a.b.c", jwt.encode({"sub": "1"}, "x" * 32, "HS256", {"kid": "k"})]
)
def test_a_token_that_the_issuer_did_not_sign_is_refused(token: str) -> None:
    with pytest.raises(Invalid, match="cannot be accepted"):
        asyncio.run(_checked(token))


async def _checked(token: str) -> Any:
    sign_in = OidcSignIn(SETTINGS, AddressGuard(SsrfSettings()), SystemClock())
    public = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)

    async def keys(*_: Any, **__: Any) -> tuple[int, dict[str, Any]]:
        return 200, {"keys": [{**public, "kid": "k", "use": "sig", "alg": "RS256"}]}

    sign_in._call = keys  # type: ignore[method-assign]  # what the issuer publishes
    return await sign_in._claims(
        {"jwks_uri": "https://login.example/keys"}, token, Attempt(0, "n", "v", "u", "")
    )


def test_sign_ins_that_one_address_begins_take_no_place_of_others() -> None:
    async def scenario() -> None:
        sign_in = OidcSignIn(SETTINGS, AddressGuard(SsrfSettings()), SystemClock())
        sign_in._metadata = {"authorization_endpoint": "https://login.example/authorize"}
        sign_in._metadata_until_s = inf
        _, state = await sign_in.begin("https://sluice.example/back", "10.0.0.1")
        for number in range(300):
            await sign_in.begin("https://sluice.example/back", f"2001:db8:0:7::{number:x}")
        with pytest.raises(Invalid, match="the issuer refused the sign-in"):
            await sign_in.finish({"state": state, "error": "access_denied"}, state)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["admins"], "administrator"),
        ("admins", "administrator"),
        (["others"], None),
        (None, None),
        ({"admins": True}, None),
    ],
)
def test_the_role_is_that_of_the_first_value_of_the_claim(groups: Any, role: str | None) -> None:
    sign_in = OidcSignIn(SETTINGS, AddressGuard(SsrfSettings()), SystemClock())
    claims = {"sub": "1", "preferred_username": "ann", "groups": groups}
    if role is None:
        with pytest.raises(Invalid, match="has no role here"):
            sign_in._owner(claims)
    else:
        assert sign_in._owner(claims).role == role
