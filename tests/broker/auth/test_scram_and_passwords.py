"""SCRAM, and what is kept of passwords."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.decision import DENIED, Decision
from broker.auth.exchange import Continue, Finished
from broker.auth.passwords import (
    Algorithm,
    Credential,
    generated_password,
    hashed,
    prepared,
    saslprep,
)
from broker.auth.scram import MALFORMED, Account, ScramExchange
from tests.support.scram import ScramClient

ALLOWED = Decision("allow", is_superuser=True)
CREDENTIAL = hashed(b"pencil", "pbkdf2_sha256", 4096, b"0123456789abcdef")


def exchange(credential: Credential = CREDENTIAL, nonce: str = "server") -> ScramExchange:
    return ScramExchange(
        lambda name: Account(credential, ALLOWED if name == "user" else DENIED), lambda: nonce
    )


def test_the_example_of_rfc_7677() -> None:
    import base64

    credential = hashed(
        b"pencil", "pbkdf2_sha256", 4096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    )
    server = exchange(credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == Continue(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    final = server.step(b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert final == Finished(ALLOWED, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("method", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=user,"])
def test_a_client_that_knows_the_password_is_taken(method: str, header: str) -> None:
    algorithm: Algorithm = "pbkdf2_sha256" if method.endswith("256") else "pbkdf2_sha512"
    server, client = (
        exchange(hashed(b"pencil", algorithm, 4096)),
        ScramClient("user", "pencil", method, header=header),
    )
    challenge = server.step(client.first())
    assert isinstance(challenge, Continue)
    final = server.step(client.answer(challenge.data))
    assert isinstance(final, Finished)
    assert final.decision == ALLOWED
    assert client.is_server(final.data)


def test_one_that_does_not_and_one_that_does_not_exist_are_told_the_same() -> None:
    for name, password in (("user", "pen"), ("nobody", "pencil")):
        server, client = exchange(), ScramClient(name, password)
        challenge = server.step(client.first())
        assert isinstance(challenge, Continue)
        final = server.step(client.answer(challenge.data))
        assert isinstance(final, Finished)
        assert final.decision == DENIED


@pytest.mark.parametrize(
    "first",
    [
        b"", b"\xff", b"n", b"n,,", b"n,,n=user", b"n,,r=x,n=user", b"p=tls-unique,,n=user,r=x", b"n,,m=x,n=user,r=x",
        b"n,,n=,r=x", b"n,,n=user,r=", b"n,a=other,n=user,r=x", b"n,,n=us=er,r=x", b"n,,n=us=2Xer,r=x",
        b"n,,n=user,r=\x01", b"n,,n=\xc2\xa0\x01,r=x",
    ],
)  # fmt: skip
def test_a_first_message_that_is_none_ends_the_exchange(first: bytes) -> None:
    assert exchange().step(first) == Finished(MALFORMED)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"server", b"sErver"),
        lambda final: final[:-8],
        lambda final: final + b"!",
        lambda final: b"",
        lambda final: b"\xff",
        lambda final: None,
    ],
    ids=["binding", "nonce", "short", "no base64", "empty", "no text", "absent"],
)
def test_a_final_message_that_is_none_ends_the_exchange(change) -> None:  # type: ignore[no-untyped-def]
    server, client = exchange(), ScramClient("user", "pencil")
    challenge = server.step(client.first())
    assert isinstance(challenge, Continue)
    assert server.step(change(client.answer(challenge.data))) == Finished(MALFORMED)


def test_a_client_may_begin_without_data() -> None:
    server, client = exchange(), ScramClient("user", "pencil")
    assert server.step(None) == Continue(b"")
    assert isinstance(server.step(client.first()), Continue)


@given(st.lists(st.binary(max_size=60) | st.none(), max_size=4))
def test_whatever_is_sent_nothing_is_raised(sent: list[bytes | None]) -> None:
    server = exchange()
    for data in sent:
        if isinstance(server.step(data), Finished):
            break


@pytest.mark.parametrize(
    "algorithm", ["pbkdf2_sha256", "pbkdf2_sha384", "pbkdf2_sha512", "sha256", "sha512"]
)
def test_a_credential_knows_its_password_also_when_it_was_stored(algorithm: Algorithm) -> None:
    made = hashed("käse".encode(), algorithm, 10 if algorithm.startswith("pbkdf2") else 0)
    kept = Credential.from_spec(made.as_spec())
    assert kept == made
    assert kept.matches("käse".encode())
    assert kept.matches("ka\u0308se".encode())  # the same text, written otherwise
    assert not kept.matches(b"kase")
    assert "key" not in repr(kept)


@given(st.binary(max_size=40))
def test_any_password_can_be_checked(password: bytes) -> None:
    assert hashed(password, "sha256", 0).matches(password)
    assert prepared(prepared(password)) == prepared(password)


@pytest.mark.parametrize(
    ("text", "result"), [("I\u00adX", "IX"), ("user", "user"), ("\u00aa", "a"), ("\u2168", "IX")]
)
def test_saslprep_by_the_examples_of_rfc_4013(text: str, result: str) -> None:
    assert saslprep(text) == result


@pytest.mark.parametrize("text", ["\u0007", "\u06271"])
def test_saslprep_refuses_by_the_examples_of_rfc_4013(text: str) -> None:
    with pytest.raises(ValueError, match="SASLprep"):
        saslprep(text)


def test_generated_passwords_are_long_and_differ() -> None:
    made = {generated_password() for _ in range(100)}
    assert len(made) == 100
    assert {len(password) for password in made} == {43}
    assert all(password.isalnum() and password.isascii() for password in made)
