"""What PostgreSQL and the way to it say went wrong, as what is to be done about it."""

from __future__ import annotations

from typing import Final

from bridges.postgresql.settings import PostgresSettings
from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    TryAgain,
    understood,
)

# Classes of SQLSTATE: data exceptions, and integrity that would be violated.
_ABOUT_ROWS: Final = ("22", "23")
# Logins, databases that are not there.
_BAD_SETTINGS: Final = ("28", "3D")
# Rights, keys that are not unique, columns that are not there.
_UNUSABLE: Final = ("42501", "42P10", "42703")
_MISSING: Final = ("42P01", "3F000")
# Conflicts, resources such as a full disk, locks, a statement that took too long, a server that only reads.
_TRY_AGAIN: Final = ("40", "53", "55", "57014", "25006")
_RECONNECT: Final = ("08", "57")


def refuses_rows(error: BaseException) -> bool:
    """Whether an error is about values in rows, so that other rows may go through."""
    import asyncpg

    if isinstance(error, asyncpg.exceptions.DataError) and not isinstance(error, asyncpg.PostgresError):
        return True  # values that the client cannot encode
    state = getattr(error, "sqlstate", None) or ""
    return state.startswith(_ABOUT_ROWS)


def meant(error: BaseException, settings: PostgresSettings) -> BridgeError:
    """Any other error as those of bridges."""
    import asyncpg

    if isinstance(error, BridgeError):
        return error
    text = str(error).strip() or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    for begins, kind in (
        (_MISSING, TargetMissing),
        (_BAD_SETTINGS, BadSettings),
        (_UNUSABLE, TargetUnusable),
        (_TRY_AGAIN, TryAgain),
        (_RECONNECT, ReconnectFirst),
    ):
        if state.startswith(begins):
            return kind(f"{settings.server} says: {text}")
    # An InternalClientError is how asyncpg puts it when a connection breaks at the start of a transaction.
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError)):
        return ReconnectFirst(f"{settings.server}: {text}")
    if isinstance(error, OSError):
        return ReconnectFirst(f"{settings.server}: {(error.strerror or text).lower()}")
    return understood(error)
