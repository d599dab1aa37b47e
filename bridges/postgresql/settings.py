"""Settings of PostgreSQL."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bridges.resource.settings.address import parse_address
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsOptions
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS

DEFAULT_PORT = 5432


class PostgresSettings(Settings):
    """A database and the connections to it."""

    server: Annotated[str, ADDRESS] = Field(default="127.0.0.1:5432", description="`host:port`.")
    database: str = Field(min_length=1, description="Name of the database.")
    username: str = Field(min_length=1, description="User name.")
    password: SecretText | None = Field(default=None, description="Password, or `${env:NAME}`, `${file:PATH}`.")
    pool_size: int = Field(default=8, ge=1, le=128, description="Maximum connections.")
    ssl: TlsOptions = Field(default_factory=TlsOptions, description="TLS.")

    @field_validator("server")
    @classmethod
    def _server(cls, value: str) -> str:
        parse_address(value, DEFAULT_PORT)
        return value

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return parse_address(self.server, DEFAULT_PORT)


class PostgresActionSettings(Settings):
    """Which table a row goes to, and how."""

    table: str = Field(
        min_length=1,
        pattern=r"^[^.\s\x00]+(\.[^.\s\x00]+)?$",
        description="The table, `name` or `schema.name`, as it is written in the database.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Templates by column, as `${temp}`. Without any, members of the row go to columns of their names.",
    )
    unknown_columns: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="Rows with members that the table has no column for are given up, or written without them.",
    )
    mode: Literal["insert", "upsert"] = Field(
        default="insert", description="insert adds rows; upsert replaces the one with the same key."
    )
    key: list[str] = Field(
        default_factory=list, description="Columns of the key for upsert; else those of the table's primary key."
    )
    create_table: bool = Field(
        default=False, description="Make the table when it is not there, with the types of the columns that rules give."
    )

    @model_validator(mode="after")
    def _fits(self) -> PostgresActionSettings:
        if self.key and self.mode == "insert":
            raise ValueError("key has no effect with mode insert; use mode upsert")
        if self.columns and (absent := [name for name in self.key if name not in self.columns]):
            raise ValueError(f"key names {absent[0]!r}, which columns has no template for")
        if self.create_table and self.mode == "upsert" and not self.key:
            raise ValueError("a table that is made for upsert needs key, the columns of its primary key")
        return self
