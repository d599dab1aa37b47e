"""Keys that are read from an issuer over HTTPS: rotation, an issuer that is away, answers that are none."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.auth.attempt import ConnectAttempt
from broker.auth.authenticators.jwt import JwtAuthenticator, JwtSettings
from broker.auth.decision import Decision
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core import reason
from broker.core.errors import ConfigError
from broker.observe.metrics import Metrics
from tests.support.certificates import Authority
from tests.support.http_service import Reply
from tests.support.mqtt_server import MovedClock, on_loop
from tests.support.tokens import SECRET, Issuer, jwk, of_issuer, signed
from tests.support.waiting import until


class Site:
    """An issuer, and an authenticator over its keys."""

    def __init__(self, issuer: Issuer, guard: SsrfSettings, settings: dict[str, Any]) -> None:
        self.issuer, self.metrics, self.clock = issuer, Metrics(), MovedClock()
        made = JwtSettings.model_validate({"mechanism": "jwt", "jwks_url": issuer.url, **settings})
        self.authenticator = JwtAuthenticator(made, AddressGuard(guard), self.metrics, self.clock)

    @property
    def state(self) -> Any:
        """What people are told of the keys."""
        assert self.authenticator.state is not None
        return self.authenticator.state["jwks"]

    @property
    def asked(self) -> int:
        """How often the issuer was asked."""
        return len(self.issuer.service.received)

    async def decided(self, token: str) -> Decision:
        """What is found of a client with this token."""
        found = self.authenticator.decide(ConnectAttempt("c1", None, token.encode()))
        return found if isinstance(found, Decision) else await found

    def refused(self, why: str) -> float:
        """How many were refused for a reason."""
        return self.metrics.value("jwt_refused", reason=why)

    async def after(self, seconds: float) -> None:
        """Let time pass, and the request for keys be answered that is due then."""
        asked = self.metrics.value("jwks_requests", outcome="success") + self.failures
        self.clock.move(seconds)
        self.authenticator.tick()
        await until(
            lambda: self.metrics.value("jwks_requests", outcome="success") + self.failures > asked
        )

    @property
    def failures(self) -> float:
        return self.metrics.value("jwks_requests", outcome="failure")


@asynccontextmanager
async def published(
    tmp_path: Path, *keys: Any, guard: SsrfSettings | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """An issuer with these keys, reached over HTTPS."""
    authority = Authority(tmp_path)
    files = authority.sign("issuer", {"CN": "issuer"}, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    issuer = Issuer(*keys, context=context)
    settings = {"ssl": {"cacertfile": str(authority.file)}, **settings}
    async with issuer.service:
        site = Site(issuer, guard or SsrfSettings(), settings)
        try:
            yield site
        finally:
            site.authenticator.close()


@on_loop
async def test_the_first_login_waits_for_the_keys_and_the_next_does_not(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a"), jwk("r", "RS256")) as site:
        assert site.state["status"] == "connecting"
        assert (await site.decided(of_issuer("a"))).is_allowed
        assert isinstance(
            site.authenticator.decide(ConnectAttempt("c", None, of_issuer("a").encode())), Decision
        )
        assert (await site.decided(of_issuer("r", algorithm="PS256"))).is_allowed
        assert (await site.decided(signed(algorithm="ES256", key="a"))).is_allowed  # names no key
        assert site.asked == 1
        assert (site.state["status"], site.state["keys"]) == ("connected", 2)


@on_loop
async def test_many_that_wait_have_the_issuer_asked_once(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a")) as site:
        found = await asyncio.gather(*(site.decided(of_issuer("a")) for _ in range(50)))
        assert all(one.is_allowed for one in found)
        assert site.asked == 1


@on_loop
async def test_keys_that_were_replaced_are_used_and_the_old_ones_are_not(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a"), refresh_interval="5m") as site:
        assert (await site.decided(of_issuer("a"))).is_allowed
        site.issuer.keys = [jwk("b")]
        await site.after(301)
        assert (await site.decided(of_issuer("b"))).is_allowed
        assert not (await site.decided(of_issuer("a"))).is_allowed
        assert site.refused("unknown_key") == 1


@on_loop
async def test_a_new_key_is_looked_for_at_once_but_not_for_every_token(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a")) as site:
        assert (await site.decided(of_issuer("a"))).is_allowed
        site.issuer.keys = [jwk("a"), jwk("b")]
        assert not (
            await site.decided(of_issuer("b"))
        ).is_allowed  # the keys were read a moment ago
        site.clock.move(10)
        assert (await site.decided(of_issuer("b"))).is_allowed
        site.clock.move(10)
        for number in range(30):
            assert not (await site.decided(of_issuer(f"made-up-{number % 3}"))).is_allowed
        assert site.asked == 3


@on_loop
async def test_while_the_issuer_is_away_the_last_keys_are_used(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a"), refresh_interval="5m") as site:
        assert (await site.decided(of_issuer("a"))).is_allowed
        await site.issuer.service.down()
        await site.after(301)
        assert site.failures == 1
        assert site.state["status"] == "disconnected"
        assert site.state["keys"] == 1
        assert site.state["last_error"]
        assert (await site.decided(of_issuer("a"))).is_allowed
        without_kid = signed(algorithm="ES256", key="b")
        for replaced in (of_issuer("b"), without_kid):
            assert (await site.decided(replaced)).reason_code == reason.SERVER_UNAVAILABLE
        forged = signed(algorithm="ES256", key="b", kid="a")
        assert (await site.decided(forged)).reason_code == reason.BAD_USER_NAME_OR_PASSWORD
        await site.issuer.service.up()
        await site.after(10)
        assert site.state["status"] == "connected"
        assert site.state["last_error"] is None


@on_loop
async def test_where_the_keys_were_never_read_the_broker_says_that_it_is_unavailable(
    tmp_path: Path,
) -> None:
    async with published(tmp_path, jwk("a"), secret=SECRET) as site:
        await site.issuer.service.down()
        found = await site.decided(of_issuer("a"))
        assert (found.verdict, found.reason_code) == ("deny", reason.SERVER_UNAVAILABLE)
        assert site.refused("keys_unavailable") == 1
        assert (await site.decided(signed())).is_allowed  # by the secret, which needs nobody


@on_loop
async def test_an_issuer_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a"), request_timeout="500ms") as site:
        site.issuer.reply = Reply(waits_for=asyncio.Event())
        found = await site.decided(of_issuer("a"))
        assert found.reason_code == reason.SERVER_UNAVAILABLE
        assert site.state["last_error"] == "no answer within 0.5 s"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(500, b"oops"), "the answer is 500"),
        (Reply(302, headers=[("Location", "https://127.0.0.1:1/keys")]), "the answer is 302"),
        (Reply(body=b"[]"), "not a JWK set"),
        (Reply(body=b"<html>"), "not a JWK set"),
        (Reply(body=json.dumps({"keys": [{}] * 257}).encode()), "not a JWK set"),
        (Reply(body=b'{"keys": []}' + b" " * 2_000_000), "longer than 1048576 bytes"),
        (Reply(cut=True), ""),
        (Reply(raw=b"\0\1\2\3"), ""),
    ],
    ids=["500", "redirect", "list", "html", "many", "long", "cut", "noise"],
)
def test_an_answer_that_is_none_leaves_the_last_keys(
    tmp_path: Path, reply: Reply, told: str
) -> None:
    @on_loop
    async def check() -> None:
        async with published(tmp_path, jwk("a"), refresh_interval="1m") as site:
            assert (await site.decided(of_issuer("a"))).is_allowed
            site.issuer.reply = reply
            await site.after(61)
            assert site.failures == 1
            assert told in str(site.state["last_error"])
            assert (await site.decided(of_issuer("a"))).is_allowed

    check()


@on_loop
async def test_an_issuer_with_another_certificate_is_not_believed_unless_that_was_said(
    tmp_path: Path,
) -> None:
    async with published(tmp_path, jwk("a"), ssl={}) as site:
        assert not (await site.decided(of_issuer("a"))).is_allowed
        assert "certificate" in str(site.state["last_error"]).lower()
    async with published(tmp_path, jwk("a"), ssl={"verify": "none"}) as site:
        assert (await site.decided(of_issuer("a"))).is_allowed


@on_loop
async def test_addresses_that_must_not_be_called_are_not(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a"), guard=SsrfSettings(enable=True)) as site:
        assert not (await site.decided(of_issuer("a"))).is_allowed
        assert "rule_engine.ssrf.deny_cidrs" in str(site.state["last_error"])
        assert site.asked == 0


@on_loop
async def test_a_token_by_the_secret_never_waits_for_the_issuer(tmp_path: Path) -> None:
    async with published(tmp_path, jwk("a"), secret=SECRET) as site:
        assert isinstance(
            site.authenticator.decide(ConnectAttempt("c", None, signed().encode())), Decision
        )
        assert site.asked == 0


def test_certificates_that_cannot_be_used_are_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for tls, told in (
        ({"cacertfile": str(tmp_path / "none.pem")}, "none.pem cannot be used: no such file"),
        ({"cacertfile": str(tmp_path / "empty.pem")}, "empty.pem cannot be used"),
        ({"keyfile": "k.pem"}, "of no use without ssl.certfile"),
    ):
        with pytest.raises(ConfigError, match=f"authentication: .*{told}"):
            Site(Issuer(), SsrfSettings(), {"jwks_url": "https://127.0.0.1/keys", "ssl": tls})
