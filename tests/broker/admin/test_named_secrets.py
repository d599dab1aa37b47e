"""References to named secrets: resolved when they are used, refused where they are unknown, changed by one save."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bridges.http.settings import HttpActionSettings
from bridges.http_server.authentication import guard_of
from bridges.http_server.settings import TokenAuthentication
from bridges.resource.settings.secret import SecretText, hider
from broker.admin.named_secrets import NamedSecrets
from broker.auth.attempt import ConnectAttempt
from broker.auth.authenticators.jwt import JwtAuthenticator, JwtSettings
from broker.auth.decision import Decision
from broker.config.allowed import AllowedSettings, confine, trusted
from broker.config.model import Settings
from broker.config.object_stores import StoreSettings
from broker.config.root import load_config
from broker.config.secret_text import SecretUnreadable, reference_problems, with_references
from broker.config.sections import Sections
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.config.vault import NAMED_SECRETS, Vault
from broker.core.clock import SystemClock
from broker.core.errors import InUse, Invalid
from broker.core.objects import Reference
from broker.core.receivers import PostRefused
from broker.observe.metrics import Metrics
from rules.actions.spec import RepublishAction
from tests.support.bridges import Bridges
from tests.support.http_bridge import ACTION, run, sent
from tests.support.http_service import Service
from tests.support.mqtt_server import MovedClock
from tests.support.tokens import SECRET, signed


@pytest.fixture
def sections(tmp_path: Path) -> Sections:
    return Sections(load_config({}, data_dir=tmp_path, environ={}))


@pytest.fixture
def secrets(tmp_path: Path, sections: Sections) -> Iterator[NamedSecrets]:
    confine(AllowedSettings(), tmp_path)
    service = NamedSecrets(sections, SystemClock(), Vault.of_environment(tmp_path, {}))
    service.start()
    yield service
    NAMED_SECRETS.use({})
    confine(AllowedSettings(), None)


def save(secrets: NamedSecrets, value: str, name: str = "key") -> None:
    """As ``PUT`` does."""
    body = {"name": name, "value": value}
    known = any(row["name"] == name for row in secrets.list())
    secrets.replace(name, body) if known else secrets.create(body)


def test_a_reference_is_shown_and_saved_as_it_is_and_gives_the_present_value(
    secrets: NamedSecrets,
) -> None:
    save(secrets, "first")
    reference = SecretText("${secret:key}")
    assert (reference.shown, reference.written, reference.reveal()) == (
        "${secret:key}",
        "${secret:key}",
        "first",
    )
    save(secrets, "second")
    assert reference.reveal() == "second"
    secrets.delete("key")
    with pytest.raises(Exception, match="expected the name of a secret, got 'key'"):
        reference.reveal()


class Holder(Settings):
    secret: SecretText


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            "${secret:historain}",
            "expected the name of a secret, got 'historain'; did you mean 'historian'?",
        ),
        (
            "${secret:other}",
            "expected the name of a secret, got 'other'. Try: sluice secrets put other",
        ),
        (
            "${sealed:historian:AAAA:/etc/passwd}",
            "expected ${secret:NAME}, ${env:NAME} or ${file:PATH}",
        ),
        ("${env:SLUICE_SECRETS_KEY}", "expected a variable named SLUICE_SECRET_..."),
        ("${secret:historian}", ""),
    ],
)
def test_a_reference_to_no_secret_is_a_problem_when_it_is_saved(
    secrets: NamedSecrets, written: str, expected: str
) -> None:
    save(secrets, "value", "historian")
    problems = [
        problem.message
        for problem in reference_problems(Holder.model_validate({"secret": written}))
    ]
    assert len(problems) == bool(expected)
    assert expected in "".join(problems)


def test_the_variable_of_the_key_is_not_read_whatever_is_allowed(tmp_path: Path) -> None:
    confine(AllowedSettings(env_prefixes=["SLUICE"]), tmp_path)
    try:
        assert "expected a variable" in SecretText("${env:SLUICE_SECRETS_KEY}").why_not_allowed
    finally:
        confine(AllowedSettings(), None)


def test_a_header_has_the_new_value_in_the_next_request(secrets: NamedSecrets) -> None:
    save(secrets, "first")

    async def check(bridges: Bridges, service: Service) -> None:
        for number, value in ((1, "first"), (2, "second")):
            save(secrets, value)
            bridges.send({"n": number}, ACTION)
            await sent(bridges, number)
        headers = [
            (request.header("x-key"), request.header("authorization")) for request in service.taken
        ]
        assert headers == [("first", "Bearer first"), ("second", "Bearer second")]
        assert bridges.connectors.get("plant")["headers"] == {"X-Key": "${secret:key}"}

    bearer = {"mechanism": "bearer", "token": "${secret:key}"}
    service = run(
        check, {}, connector={"headers": {"X-Key": "${secret:key}"}, "authentication": bearer}
    )
    assert service.connections == 1  # nothing reconnected


def test_a_connector_with_an_unknown_secret_is_refused(secrets: NamedSecrets) -> None:
    with pytest.raises(Invalid, match="expected the name of a secret, got 'key'"):
        run(lambda bridges, service: None, {}, connector={"headers": {"X-Key": "${secret:key}"}})


def test_senders_need_the_new_token_for_the_next_request(secrets: NamedSecrets) -> None:
    save(secrets, "first")
    guard = guard_of(
        TokenAuthentication.model_validate({"mechanism": "token", "tokens": ["${secret:key}"]})
    )
    guard.check_headers({"authorization": "Bearer first"})
    save(secrets, "second")
    guard.check_headers({"authorization": "Bearer second"})
    with pytest.raises(PostRefused):
        guard.check_headers({"authorization": "Bearer first"})


def test_clients_need_tokens_that_the_new_secret_signs(secrets: NamedSecrets) -> None:
    def verdict(token: str) -> str:
        decision = authenticator.decide(
            ConnectAttempt(client_id="c", username="ann", password=token.encode())
        )
        assert isinstance(decision, Decision)
        return decision.verdict

    save(secrets, SECRET)
    settings = JwtSettings.model_validate({"mechanism": "jwt", "secret": "${secret:key}"})
    authenticator = JwtAuthenticator(
        settings, AddressGuard(SsrfSettings()), Metrics(), MovedClock()
    )
    old = signed({"sub": "ann"})
    assert verdict(old) == "allow"
    save(secrets, "another secret of more than thirty-two bytes")
    assert verdict(old) == "deny"
    save(secrets, "too short")  # the last one that can be used stays
    assert verdict(old) == "deny"
    save(secrets, SECRET)
    assert verdict(old) == "allow"


def test_another_process_gets_the_value_encrypted_and_reads_it_with_the_key(
    secrets: NamedSecrets, tmp_path: Path
) -> None:
    save(secrets, "first-value")
    members = {"access_key_id": "${secret:key}", "secret_access_key": "${secret:key}"}
    store = StoreSettings.model_validate({"url": "s3://bucket", **members})
    handed = with_references(store)
    assert "first-value" not in str(handed)
    with trusted():
        assert StoreSettings.model_validate(handed).options()["secret_access_key"] == "first-value"
    with pytest.raises(SecretUnreadable):  # not in the broker itself
        StoreSettings.model_validate(handed).options()
    (tmp_path / "secrets.key").unlink()
    with trusted(), pytest.raises(SecretUnreadable, match="got no file"):
        StoreSettings.model_validate(handed).options()


def test_a_secret_that_is_referred_to_is_not_deleted(
    secrets: NamedSecrets, sections: Sections
) -> None:
    save(secrets, "value")
    connector: dict[str, Any] = {
        "name": "plant",
        "type": "http",
        "headers": {"A": "${secret:key}", "B": "${secret:x}"},
    }
    sections.section("connectors").save({"plant": connector})
    words = {
        "name": "words",
        "sql": "SELECT '${secret:key}' AS a",
        "description": "not ${secret:key}",
    }
    sections.section("rule_engine.rules").save({"words": words})
    secrets.settings = lambda: [
        (Reference("setting", "lake"), Holder.model_validate({"secret": "${secret:key}"}))
    ]
    assert secrets.get("key")["used_by"] == ["connector 'plant'", "setting 'lake'"]
    with pytest.raises(InUse, match="connector 'plant', setting 'lake'"):
        secrets.delete("key")
    sections.section("connectors").save({"plant": None})
    secrets.settings = tuple
    assert secrets.get("key")["used_by"] == []
    secrets.delete("key")


def test_errors_hide_the_value_before_the_last_change_too(secrets: NamedSecrets) -> None:
    save(secrets, "first-value")
    hide = hider(Holder.model_validate({"secret": "${secret:key}"}))
    save(secrets, "second-value")
    assert (
        hide("login with first-value or second-value failed")
        == "login with ****** or ****** failed"
    )


def test_templates_of_headers_and_parameters_have_secrets(secrets: NamedSecrets) -> None:
    save(secrets, "first${t}")

    async def check(bridges: Bridges, service: Service) -> None:
        for number, value in ((1, "first${t}"), (2, "second")):
            save(secrets, value)
            bridges.send({"n": number}, ACTION)
            await sent(bridges, number)
        taken = [
            (request.header("x-key"), request.header("x-n"), request.query["k"])
            for request in service.taken
        ]
        assert taken == [("Key first${t}", "1", "first${t}"), ("Key second", "2", "second")]
        shown = bridges.actions.get("out")["parameters"]
        assert shown["headers"] == {"X-Key": "******", "X-N": "${n}"}
        assert shown["query"] == {"k": "${secret:key}"}

    headers = {"X-Key": "Key ${secret:key}", "X-N": "${n}"}
    run(check, {"headers": headers, "query": {"k": "${secret:key}"}})


@pytest.mark.parametrize(
    ("parameters", "place", "expected"),
    [
        (
            {"path": "/a/${secret:key}"},
            "/parameters/path",
            "expected no reference to a secret here",
        ),
        ({"body": "${secret:key}"}, "/parameters/body", "expected no reference to a secret here"),
        ({"key": "a-${secret:key}"}, "/parameters/key", "expected no reference to a secret here"),
        ({"headers": {"A": "a ${secret:kee}"}}, "/parameters", "got 'kee'; did you mean 'key'?"),
    ],
)
def test_other_templates_of_an_action_refuse_secrets(
    secrets: NamedSecrets, parameters: dict[str, Any], place: str, expected: str
) -> None:
    save(secrets, "value")
    with pytest.raises(Invalid) as refused:
        run(lambda bridges, service: None, parameters)
    [problem] = refused.value.problems
    assert problem.pointer == place
    assert expected in problem.message


@pytest.mark.parametrize(
    "members",
    [
        {"topic": "a/${secret:key}"},
        {"topic": "a", "payload": "${secret:key}"},
        {"topic": "a", "user_properties": {"a": "b ${secret:key}"}},
    ],
)
def test_republished_messages_have_no_secrets(members: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="expected no reference to a secret here"):
        RepublishAction.model_validate({"type": "republish", **members})


def test_errors_hide_a_secret_of_a_template_alone_too(secrets: NamedSecrets) -> None:
    save(secrets, "value-of-key")
    settings = HttpActionSettings.model_validate({"headers": {"A": "Bearer ${secret:key}"}})
    assert (
        hider(settings)("refused: Bearer value-of-key, value-of-key")
        == "refused: Bearer ******, ******"
    )
