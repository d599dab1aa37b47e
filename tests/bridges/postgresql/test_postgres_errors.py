"""What errors of PostgreSQL and of asyncpg lead to."""

from __future__ import annotations

import asyncpg
import pytest

from bridges.postgresql.connector import meant
from bridges.postgresql.settings import PostgresSettings
from bridges.resource.errors import BridgeError, NeverAgain, ReconnectFirst

SETTINGS = PostgresSettings(database="d", username="u")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            asyncpg.InternalClientError(
                "cannot switch to state 15; another operation (2) is in progress"
            ),
            ReconnectFirst,
        ),
        (asyncpg.InterfaceError("connection is closed"), ReconnectFirst),
        (ConnectionRefusedError(111, "Connection refused"), ReconnectFirst),
        (KeyError("a bug"), NeverAgain),
    ],
)
def test_rows_are_given_up_for_no_error_of_the_connection(
    error: Exception, kind: type[BridgeError]
) -> None:
    assert type(meant(error, SETTINGS)) is kind
