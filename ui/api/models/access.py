"""Sessions of the dashboard."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, model_validator
from typing_extensions import TypedDict

from broker.admin.rights import Role
from broker.core.resources import Does


class ImportedUsers(TypedDict):
    """Number of imported users."""

    imported: int


class OwnRights(TypedDict):
    """The sender of the request: its name, role and scope (null where nothing narrows it), and its rights."""

    name: str
    role: Role | None
    kinds: list[str] | None
    topics: list[str] | None
    rights: dict[str, list[Does]]


class SignInMethods(TypedDict):
    """Ways to sign in, in addition to accounts and the token."""

    oidc: str | None


class SignInAddress(TypedDict):
    """Address at the issuer that the browser goes to."""

    url: str


class SignInRequest(BaseModel, extra="forbid", strict=True):
    """The name and password of an account, or the administrator's token, typed into the dashboard."""

    token: str | None = None
    name: str | None = None
    password: str | None = None

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if (self.token is None) is not (self.name is not None and self.password is not None):
            raise ValueError("expected name and password, or token")
        return self
