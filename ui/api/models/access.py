"""Sessions of the dashboard."""

from __future__ import annotations

from pydantic import BaseModel
from typing_extensions import TypedDict


class ImportedUsers(TypedDict):
    """Number of imported users."""

    imported: int


class SignInRequest(BaseModel, extra="forbid", strict=True):
    """The administrator's token, typed into the dashboard."""

    token: str
