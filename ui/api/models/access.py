"""Sessions of the dashboard."""

from __future__ import annotations

from pydantic import BaseModel


class SignInRequest(BaseModel, extra="forbid", strict=True):
    """The administrator's token, typed into the dashboard."""

    token: str
