"""Tokens: which are taken, which are refused and why, and what follows from them."""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.auth.attempt import Certificate, ConnectAttempt
from broker.auth.authenticators.jwt import REASONS, JwtAuthenticator, JwtSettings
from broker.auth.authorize import AuthorizationSettings, Authorizer
from broker.auth.decision import Decision
from broker.auth.jwt_keys import KeyOfNoUse, keys_of_set, secret_key
from broker.auth.subject import subject_of
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core import reason
from broker.core.errors import ConfigError
from broker.core.topic import TopicFilter
from broker.observe.metrics import Metrics
from tests.support.certificates import Authority
from tests.support.mqtt_server import MovedClock
from tests.support.tokens import NOW_S, SECRET, by_hand, jwk, pem, private_key, signed

ALGORITHMS = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip


def authenticator(metrics: Metrics | None = None, **settings: Any) -> JwtAuthenticator:
    """One over the secret, unless other keys are given."""
    if not settings.keys() & {"secret", "public_key", "jwks_url"}:
        settings["secret"] = SECRET
    made = JwtSettings.model_validate({"mechanism": "jwt", **settings})
    return JwtAuthenticator(made, AddressGuard(SsrfSettings()), metrics or Metrics(), MovedClock())


def decided(
    token: str | bytes | None, client: dict[str, Any] | None = None, **settings: Any
) -> Decision:
    """What is found of a client with this password."""
    password = token.encode() if isinstance(token, str) else token
    attempt = ConnectAttempt(
        **{"client_id": "c1", "username": "ann", "password": password, **(client or {})}
    )
    found = authenticator(**settings).decide(attempt)
    assert isinstance(found, Decision)
    return found


def why_refused(token: str, client: dict[str, Any] | None = None, **settings: Any) -> str:
    """The word under which a token's refusal is counted."""
    metrics = Metrics()
    found = decided(token, client, metrics=metrics, **settings)
    assert found.verdict == "deny"
    assert found.why
    [counted] = [name for name in REASONS if metrics.value("jwt_refused", reason=name)]
    return counted


# -- signatures --


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_secret_is_taken(algorithm: str) -> None:
    secret = SECRET * 3
    assert decided(signed(algorithm=algorithm, key=secret), secret=secret).is_allowed
    encoded = base64.urlsafe_b64encode(secret.encode()).decode()
    assert decided(
        signed(algorithm=algorithm, key=secret), secret=encoded, secret_base64_encoded=True
    ).is_allowed
    assert why_refused(signed(algorithm=algorithm, key=secret + "x"), secret=secret) == "signature"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_signed_with_the_private_key_is_taken(algorithm: str) -> None:
    assert decided(signed(algorithm=algorithm), public_key=pem(algorithm)).is_allowed
    assert (
        why_refused(signed(algorithm=algorithm, key="other"), public_key=pem(algorithm))
        == "signature"
    )


def test_the_key_may_be_a_file_a_certificate_or_of_the_longer_curve(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem("EdDSA", "448"))
    assert decided(signed(algorithm="EdDSA", key="448"), public_key=str(file)).is_allowed
    files = Authority(tmp_path).sign("issuer", {"CN": "issuer"})
    token = jwt.encode({"exp": NOW_S + 60}, files.key.read_text(), algorithm="ES256")
    assert decided(token, public_key=str(files.cert)).is_allowed


def test_a_secret_may_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    monkeypatch.setenv("SLUICE_SECRET_TOKEN_SECRET", SECRET)
    for written in (f"${{file:{tmp_path}/secret}}", "${env:SLUICE_SECRET_TOKEN_SECRET}"):
        assert decided(signed(), secret=written).is_allowed


_ENCODED = base64.b64encode(SECRET[:31].encode()).decode()


@pytest.mark.parametrize(
    ("secret", "is_encoded"),
    [("x", False), (SECRET[:31], False), ("\u20ac" * 10, False), (_ENCODED, True)],
)
def test_a_secret_that_can_be_found_by_trying_is_refused(secret: str, is_encoded: bool) -> None:
    with pytest.raises(ConfigError, match="expected 32 bytes or more, got"):
        authenticator(secret=secret, secret_base64_encoded=is_encoded)


def test_keys_in_files_may_be_replaced(tmp_path: Path) -> None:
    file, clock = tmp_path / "secret", MovedClock()
    file.write_text(SECRET)
    settings = JwtSettings.model_validate(
        {"mechanism": "jwt", "secret": f"${{file:{file}}}", "required_claims": []}
    )
    one = JwtAuthenticator(settings, AddressGuard(SsrfSettings()), Metrics(), clock)

    def takes(key: str) -> bool:
        clock.move(30)
        one.tick()
        found = one.decide(
            ConnectAttempt("c1", None, signed({"exp": NOW_S + 3600}, key=key).encode())
        )
        assert isinstance(found, Decision)
        return found.is_allowed

    assert takes(SECRET)
    file.write_text(other := "another secret of more than thirty-two bytes")
    assert [takes(other), takes(SECRET)] == [True, False]
    file.unlink()
    assert takes(other)


def test_a_public_key_never_serves_as_a_secret() -> None:
    public = pem("RS256")
    head, payload = by_hand({"alg": "HS256"}, {"exp": NOW_S + 60}).split(".")[:2]
    mac = jwt.get_algorithm_by_name("HS256").sign(f"{head}.{payload}".encode(), public.encode())
    forged = f"{head}.{payload}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    assert why_refused(forged, public_key=public) == "algorithm"
    assert why_refused(forged, public_key=public, secret=SECRET) == "signature"
    with pytest.raises(KeyOfNoUse, match="asymmetric"):
        secret_key(public.encode(), ["HS256"])


@pytest.mark.parametrize("algorithm", ["none", "None", "", "ES256K", "HS256 ", "dir"])
def test_no_other_algorithm_is_taken(algorithm: str) -> None:
    token = by_hand({"alg": algorithm}, {"exp": NOW_S + 60})
    assert why_refused(token) == "algorithm"
    assert (
        why_refused(token, secret=SECRET, public_key=pem("ES256"), algorithms=["HS256", "ES256"])
        == "algorithm"
    )


def test_algorithms_that_are_not_allowed_are_refused() -> None:
    assert (
        why_refused(signed(algorithm="HS384", key=SECRET * 2), algorithms=["HS256"]) == "algorithm"
    )
    assert (
        why_refused(signed(algorithm="PS256"), public_key=pem("PS256"), algorithms=["RS256"])
        == "algorithm"
    )
    assert why_refused(signed(algorithm="ES256"), public_key=pem("RS256")) == "algorithm"


def test_a_token_that_was_changed_is_refused() -> None:
    head, payload, signature = signed({"sub": "ann"}).split(".")
    other = signed({"sub": "root"}).split(".")[1]
    assert why_refused(f"{head}.{other}.{signature}") == "signature"
    assert why_refused(f"{head}.{payload}.") == "signature"
    assert why_refused(f"{head}.{payload}.{signature}A") == "signature"


def test_extensions_that_must_be_understood_are_not() -> None:
    assert why_refused(signed(crit=["exp"])) == "malformed"


@pytest.mark.parametrize(
    "text",
    ["", "pencil", "a.b", "a.b.c.d", "...", "eyJ.x.y", by_hand([1], {}), by_hand({"typ": "JWT"}, {}),
     by_hand({"alg": 7}, {}), by_hand(b"[" * 20_000, {}), by_hand(b"\xff\xfe", {}), signed() + "\n", " " + signed(),
     signed().replace(".", "."*2), by_hand(b'{"alg":NaN}', {}), by_hand(b"9" * 5000, {})],
    ids=lambda text: text[:12].strip() or "blank",
)  # fmt: skip
def test_what_is_no_token_is_left_to_the_next_authenticator(text: str) -> None:
    assert decided(text).verdict == "ignore"


def test_clients_without_a_password_and_with_any_bytes_are_left_to_the_next_authenticator() -> None:
    assert decided(None).verdict == "ignore"
    assert decided(b"\xff\x00.\x80.a").verdict == "ignore"


# -- claims --


@pytest.mark.parametrize(
    ("claims", "outcome"),
    [
        ({"exp": NOW_S + 1}, None), ({"exp": NOW_S - 9}, None), ({"exp": NOW_S - 10}, "expired"),
        ({"exp": NOW_S - 10.0}, "expired"), ({"exp": 0}, "expired"), ({"exp": -1}, "expired"),
        ({"nbf": NOW_S + 10}, None), ({"nbf": NOW_S + 11}, "not_yet_valid"), ({"iat": NOW_S + 11}, "not_yet_valid"),
        ({"iat": NOW_S - 1e9}, None), ({"exp": None}, "claim"), ({"exp": "2030-01-01"}, "claim"),
        ({"exp": True}, "claim"),
        ({"exp": [NOW_S + 60]}, "claim"), ({"exp": 10**400}, "claim"), ({"nbf": "soon"}, "claim"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_tokens_begin_and_end(claims: dict[str, Any], outcome: str | None) -> None:
    token = signed(claims)
    if outcome is None:
        assert decided(token).is_allowed
    else:
        assert why_refused(token) == outcome


def test_times_that_are_no_numbers_of_json_are_refused() -> None:
    for text in (
        b'{"exp": NaN}',
        b'{"exp": Infinity}',
        b'{"exp": 1e999}',
        b"[]",
        b"{",
        b"[" * 20_000,
    ):
        token = jwt.PyJWS().encode(text, SECRET, algorithm="HS256")
        assert why_refused(token) in ("malformed", "claim")


def test_tokens_without_an_end_are_taken_where_that_was_said() -> None:
    token = jwt.encode({"sub": "ann"}, SECRET, algorithm="HS256")
    assert why_refused(token) == "claim"
    found = decided(token, required_claims=[])
    assert found.is_allowed
    assert found.expires_s is None


def test_a_token_that_is_taken_says_when_it_ends() -> None:
    assert decided(signed()).expires_s == NOW_S + 70
    assert decided(signed(), disconnect_after_expire=False).expires_s is None


VERIFIED = {
    "iss": "https://id.example",
    "aud": ["mqtt", "broker"],
    "sub": "${username}",
    "device": "dev-${clientid}",
    "level": 3,
    "trusted": True,
}
GOOD = {
    "iss": "https://id.example",
    "aud": ["web", "mqtt"],
    "sub": "ann",
    "device": "dev-c1",
    "level": 3,
    "trusted": True,
}


def test_claims_that_are_as_they_must_be_prove_names() -> None:
    found = decided(signed(GOOD), verify_claims=VERIFIED)
    assert found.is_allowed
    assert found.verified == {"username", "clientid"}
    assert decided(signed()).verified == frozenset()
    joined = decided(signed({"who": "ann-c1"}), verify_claims={"who": "${username}-${clientid}"})
    assert joined.is_allowed
    assert joined.verified == frozenset()


@pytest.mark.parametrize(
    "wrong",
    [{"iss": "https://id.example.evil"}, {"aud": "web"}, {"aud": []}, {"sub": "root"}, {"sub": None}, {"sub": ["bob"]},
     {"device": "dev-c2"}, {"level": True}, {"level": "3"}, {"trusted": 1}, {"trusted": False}, {"iss": {"a": 1}}],
    ids=json.dumps,
)  # fmt: skip
def test_claims_that_are_otherwise_refuse(wrong: dict[str, Any]) -> None:
    found = decided(signed({**GOOD, **wrong}), verify_claims=VERIFIED)
    assert (found.verdict, found.reason_code) == ("deny", reason.NOT_AUTHORIZED)


def test_a_placeholder_without_a_value_holds_for_nothing() -> None:
    settings = {"verify_claims": {"cn": "${cert_common_name}", "site": "${client_attrs.site}"}}
    claims = {"cn": "dev", "site": "berlin"}
    assert why_refused(signed(claims), **settings) == "claim"
    known = {"certificate": Certificate("CN=dev", "dev"), "attributes": {"site": "berlin"}}
    assert decided(signed(claims), known, **settings).is_allowed
    assert (
        why_refused(
            signed({**claims, "site": ""}), {**known, "attributes": {"site": ""}}, **settings
        )
        == "claim"
    )


def test_what_stands_in_a_claim_may_be_the_name() -> None:
    found = decided(signed({"sub": "meter-7"}), username_claim="sub")
    assert found.username == "meter-7"
    assert found.verified == {"username"}
    for bad in (7, "", "a\0b", "\ud800", ["ann"], "x" * 70_000):
        assert (
            why_refused(signed({"sub": bad}) if bad != "\ud800" else _lone(), username_claim="sub")
            == "claim"
        )


def _lone() -> str:
    return jwt.PyJWS().encode(
        b'{"exp": %d, "sub": "\\ud800"}' % (NOW_S + 60), SECRET, algorithm="HS256"
    )


def test_the_token_may_stand_in_the_user_name() -> None:
    token = signed({"sub": "meter-7"})
    found = decided(None, {"username": token}, token_in="username")
    assert (found.verdict, found.username) == ("allow", "meter-7")
    assert decided("pencil", token_in="username").verdict == "ignore"
    assert why_refused("x", {"username": signed()}, token_in="username") == "claim"
    assert decided("x", {"username": signed()}, token_in="username").username == ""


def test_a_token_says_whom_rules_do_not_hold_for_and_what_is_known_of_a_client() -> None:
    claims = {
        "is_superuser": True,
        "client_attrs": {"site": "berlin", "bad name": "x", "n": 7, "_": "y"},
    }
    found = decided(signed(claims))
    assert found.is_superuser
    assert found.attributes == {"site": "berlin"}
    assert not decided(signed({"is_superuser": "true", "client_attrs": "none"})).is_superuser


# -- access rules --


def may(
    claims: dict[str, Any],
    action: str,
    topic: str,
    qos: int = 0,
    retain: bool = False,
    **settings: Any,
) -> bool:
    """Whether a client with a token of these claims may do this, where no other rule says anything."""
    found = decided(signed(claims), **settings)
    assert found.is_allowed, found.why
    subject = subject_of(ConnectAttempt("c1", "ann"), found)
    authorizer = Authorizer(AuthorizationSettings())
    if not authorizer.restricts(subject):
        return True
    rulings = authorizer.rulings(subject)
    if action == "publish":
        return rulings.publish(topic, qos, retain).is_allowed
    return rulings.subscribe(TopicFilter.parse(topic), qos).is_allowed


def test_the_rules_of_a_token_are_in_order() -> None:
    acl = [
        {"permission": "deny", "action": "publish", "topic": "a/secret"},
        {
            "permission": "allow",
            "action": "publish",
            "topics": ["a/+"],
            "qos": [0, 1],
            "retain": False,
        },
        {"permission": "allow", "action": "subscribe", "topic": "own/${clientid}/#"},
        {"permission": "allow", "topic": "eq x/+"},
    ]
    claims = {"acl": acl}
    assert may(claims, "publish", "a/b", 1)
    assert not may(claims, "publish", "a/b", 2)
    assert not may(claims, "publish", "a/b", retain=True)
    assert not may(claims, "publish", "a/secret")
    assert not may(claims, "subscribe", "a/b")
    assert may(claims, "subscribe", "x/+")
    assert not may(claims, "subscribe", "own/c1/t")  # nobody verified the client identifier
    assert may({**claims, "id": "c1"}, "subscribe", "own/c1/t", verify_claims={"id": "${clientid}"})


def test_the_short_form_of_rules() -> None:
    claims = {"acl": {"pub": ["up/#"], "sub": "down/#", "all": ["both"]}}
    assert may(claims, "publish", "up/1")
    assert may(claims, "subscribe", "down/#")
    assert may(claims, "publish", "both")
    assert may(claims, "subscribe", "both")
    assert not may(claims, "publish", "down/1")
    assert not may({"acl": {}}, "publish", "up/1")
    assert not may({"acl": []}, "publish", "up/1")
    assert may({}, "publish", "up/1")
    assert may({"rights": {"pub": ["x"]}}, "publish", "x", acl_claim_name="rights")


def test_scopes_are_read_where_that_was_said() -> None:
    scope = {
        "scope": "openid mqtt.read:down/# mqtt.write:up/+ mqtt.write:a%20b mqtt.admin:x other.write:z"
    }
    assert may(scope, "publish", "z")
    given: dict[str, Any] = {"scope_prefix": "mqtt."}
    assert may(scope, "publish", "up/1", **given)
    assert may(scope, "publish", "a b", **given)
    assert may(scope, "subscribe", "down/#", **given)
    assert not may(scope, "publish", "down/1", **given)
    assert not may(scope, "publish", "z", **given)
    assert may({"scope": ["write:q"]}, "publish", "q", scope_prefix="")


@pytest.mark.parametrize(
    "acl",
    [7, "all", [1], [{"permission": "allow"}], [{"permission": "maybe", "topic": "a"}], {"publish": ["a"]},
     [{"permission": "allow", "topic": "a/#/b"}], [{"permission": "deny", "topic": "a", "clientid": "c"}],
     [{"permission": "allow", "topic": "${secret}"}], [{"permission": "deny", "topic": "a", "topics": ["b"]}],
     [{"permission": "allow", "topic": "a"}] * 257, {"pub": [7]}],
    ids=lambda acl: json.dumps(acl)[:50],
)  # fmt: skip
def test_rules_that_cannot_be_read_refuse_the_token(acl: Any) -> None:
    assert why_refused(signed({"acl": acl})) == "claim"


# -- anything --

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
ODD = authenticator(
    public_key=pem("ES256"),
    secret=SECRET,
    username_claim="sub",
    verify_claims={"aud": "${clientid}"},
    scope_prefix="",
)
NAMES = st.sampled_from(
    ["exp", "nbf", "iat", "sub", "aud", "acl", "scope", "client_attrs", "is_superuser", "x"]
)


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=80))
def test_no_bytes_are_too_odd(header: bytes, payload: bytes, signature: bytes) -> None:
    for token in (
        header,
        by_hand(header, payload, signature).encode(),
        b".".join((header, payload, signature)),
    ):
        found = ODD.decide(ConnectAttempt("c1", "ann", token))
        assert isinstance(found, Decision)
        assert not found.is_allowed


@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "x5c"]), JSON),
    JSON,
    st.binary(),
)
def test_no_header_is_too_odd(header: Any, payload: Any, signature: bytes) -> None:
    token = by_hand({"alg": "ES256", **header}, payload, signature)
    found = ODD.decide(ConnectAttempt("c1", "ann", token.encode()))
    assert isinstance(found, Decision)
    assert not found.is_allowed


@given(st.dictionaries(NAMES, JSON))
def test_no_claims_are_too_odd(claims: dict[str, Any]) -> None:
    token = jwt.PyJWS().encode(json.dumps(claims).encode(), SECRET, algorithm="HS256")
    found = ODD.decide(ConnectAttempt("c1", "ann", token.encode()))
    assert isinstance(found, Decision)


@given(st.data())
def test_no_change_of_a_good_token_is_taken(data: st.DataObject) -> None:
    token = bytearray(_GOOD_TOKEN)
    at = data.draw(st.integers(0, len(token) - 2))  # the last sign has bits that mean nothing
    token[at] = data.draw(st.integers(0, 255).filter(lambda value: value != _GOOD_TOKEN[at]))
    found = authenticator(public_key=pem("ES256")).decide(ConnectAttempt("c1", None, bytes(token)))
    assert isinstance(found, Decision)
    assert not found.is_allowed


_GOOD_TOKEN = signed({"sub": "ann"}, "ES256").encode()


@given(
    st.lists(
        JSON
        | st.dictionaries(
            st.sampled_from(["kty", "crv", "x", "y", "n", "e", "alg", "use", "kid"]), JSON
        )
    )
)
def test_no_set_of_keys_is_too_odd(members: list[Any]) -> None:
    changed = [{**jwk("k"), **member} for member in members if isinstance(member, dict)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keys, problems = keys_of_set([*members, *changed], ALGORITHMS)
    assert len(keys) + len(problems) == len(members) + len(changed)


def test_members_of_a_set_that_are_of_no_use_are_left_out() -> None:
    private = jwt.get_algorithm_by_name("ES256").to_jwk(private_key("ES256", "p"), as_dict=True)
    members = [
        jwk("a"), jwk("b", "RS256", alg="PS256"), private, {"kty": "oct", "k": "c2VjcmV0"}, jwk("c", use="enc"),
        jwk("d", alg="HS256"), jwk("e", "ES384"),
    ]  # fmt: skip
    keys, problems = keys_of_set(members, ["ES256", "RS256", "PS256"])
    assert [(key.kid, *sorted(key.algorithms)) for key in keys] == [
        ("a", "ES256"),
        ("b", "PS256"),
        (None, "ES256"),
    ]
    assert len(problems) == 4
    assert "a secret that is published is none" in problems[0]


# -- settings --


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "nothing says who signs tokens"),
        ({"jwks_url": "http://id.example/keys"}, "must begin with https"),
        ({"jwks_url": "ftp://id.example/keys", "allow_http": True}, "must begin with https"),
        ({"jwks_url": "https://user:x@id.example"}, "without a user"),
        ({"secret": SECRET, "algorithms": ["ES256"]}, "secret is of no use"),
        ({"secret": SECRET, "algorithms": ["none"]}, "algorithms"),
        ({"secret": SECRET, "verify_claims": {"sub": "${user}"}}, "there is no ${user}"),
        (
            {"secret": SECRET, "token_in": "username", "verify_claims": {"sub": "${username}"}},
            "token_in = username",
        ),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_settings_that_cannot_be_used_are_told_in_a_sentence(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        JwtSettings.model_validate({"mechanism": "jwt", **settings})


def test_keys_that_cannot_be_used_are_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for settings, told in (
        ({"public_key": str(tmp_path / "none.pem")}, "none.pem, cannot be used: no such file"),
        ({"public_key": str(tmp_path / "empty.pem")}, "it holds no public key"),
        (
            {"public_key": pem("ES256"), "algorithms": ["RS256"]},
            "none of its algorithms is allowed",
        ),
        (
            {"secret": "${env:SLUICE_SECRET_NO_SUCH_SECRET}"},
            "SLUICE_SECRET_NO_SUCH_SECRET, which the settings refer to, is not set",
        ),
        ({"secret": "%%%", "secret_base64_encoded": True}, "not written in Base64"),
        ({"secret": ""}, "expected 32 bytes or more, got 0"),
    ):
        with pytest.raises(ConfigError, match="authentication: .*" + re.escape(told)):
            authenticator(**settings)


def test_a_secret_is_not_shown() -> None:
    settings = JwtSettings.model_validate({"mechanism": "jwt", "secret": SECRET})
    assert SECRET not in repr(settings)
    assert settings.model_dump(mode="json")["secret"] == "******"
    referred = JwtSettings.model_validate(
        {"mechanism": "jwt", "secret": "${env:SLUICE_SECRET_TOKEN_SECRET}"}
    )
    assert referred.model_dump(mode="json")["secret"] == "${env:SLUICE_SECRET_TOKEN_SECRET}"
