"""Who may connect, and what for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from ui.api.models.shapes import CheckedBody


class UserSpec(CheckedBody):
    """Somebody whom the broker itself knows. Without a password one is made."""

    name: str = Field(examples=["meter-7"])
    password: str | None = Field(None, description="Without one, a password is generated and is in the answer.")
    generate: bool = Field(False, description="Generate a password; a new user only.")
    is_superuser: bool = Field(False, description="Whether access rules do not count.")
    clientid: str | None = Field(None, description="The only client identifier the user may use.")
    description: str = ""


class UserImport(BaseModel, extra="forbid"):
    """Users with hashes of their passwords; what is the same for all may stand beside the list."""

    users: list[dict[str, Any]]
    algorithm: Literal["sha256", "sha512", "pbkdf2_sha256", "pbkdf2_sha384", "pbkdf2_sha512"] = "sha256"
    iterations: int | None = None
    salt_position: Literal["prefix", "suffix"] = "prefix"
    salt_encoding: Literal["utf8", "hex", "base64"] = Field("utf8", description="How the salts are written.")


class BanSpec(CheckedBody):
    """Whom to refuse; ``until`` is RFC 3339 or ``infinity``."""

    kind: Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"] = Field(
        alias="as", description="What is looked at; `_re` is a regular expression (RE2), `_net` a network."
    )
    who: str = Field(description="The identifier, name, address, expression or network.")
    reason: str = Field(default="", description="Why; shown to people.")
    by: str = Field(default="", description="Who made it; shown to people.")
    until: str = Field(default="infinity", description="When it ends, RFC 3339, or `infinity`.")


class AccessCheck(CheckedBody):
    """A client, and what it would do. Without ``password`` it is taken as logged in, its names verified."""

    client: dict[str, Any] = Field(examples=[{"clientid": "c1", "username": "ann"}])
    action: Literal["publish", "subscribe"] | None = None
    topic: str | None = None
    qos: Literal[0, 1, 2] = 0
    retain: bool = False


class SignInRequest(BaseModel, extra="forbid"):
    """The administrator's token, typed into the status page."""

    token: str
