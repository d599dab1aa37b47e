"""Sessions of the dashboard."""

from __future__ import annotations

from pydantic import BaseModel
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


class SignInRequest(BaseModel, extra="forbid", strict=True):
    """The administrator's token, typed into the dashboard."""

    token: str
