"""Templates of requests about a client: strings with ``${username}``, ``${clientid}``, ``${password}`` and others.

Values are never spliced into a language: each template says how its values are encoded, or has them bound as
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.auth.attempt import ConnectAttempt
from broker.core.placeholders import ANY_PLACEHOLDER, CLIENT_PLACEHOLDER, NAMED_SECRET

# Values of a client that connects, of one that is authenticated, and of a request to publish or subscribe.
OF_CLIENT: Final = (
    "username",
    "clientid",
    "peerhost",
    "listener",
    "cert_common_name",
    "cert_subject",
)
OF_LOGIN: Final = (*OF_CLIENT, "password", "zone", "peerport", "proto_ver")
OF_REQUEST: Final = (*OF_CLIENT, "action", "topic", "qos", "retain")
_ATTRIBUTE: Final = "client_attrs."

Facts = Mapping[str, str | None]


class Template:
    """A string with placeholders."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = tuple(CLIENT_PLACEHOLDER.findall(text))

    def filled(self, facts: Facts, encode: Callable[[str], str] = str) -> str:
        """The text with encoded values; a value that the client does not have is empty."""
        return CLIENT_PLACEHOLDER.sub(lambda match: encode(facts.get(match[1]) or ""), self.text)


def checked_template(text: str, names: tuple[str, ...]) -> str:
    """The text of a template, references to secrets apart.

    Raises:
        ValueError: a placeholder is unknown.
    """
    for name in ANY_PLACEHOLDER.findall(NAMED_SECRET.sub("", text)):
        if name not in names and not (
            name.startswith(_ATTRIBUTE) and CLIENT_PLACEHOLDER.fullmatch(f"${{{name}}}")
        ):
            allowed = ", ".join(names)
            raise ValueError(
                f"expected one of {allowed} or client_attrs.NAME in a placeholder, got ${{{name}}}"
            )
    return text


def facts_of_login(attempt: ConnectAttempt) -> dict[str, str | None]:
    """Values of a client that connects, by their names in templates. They are what the client says."""
    return {
        **attempt.facts(),
        "zone": attempt.zone,
        "password": None if attempt.password is None else attempt.password.decode(errors="replace"),
        "peerport": None if attempt.peer_port is None else str(attempt.peer_port),
        "proto_ver": str(attempt.protocol_version),
    }
