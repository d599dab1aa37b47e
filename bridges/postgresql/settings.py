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
    password: SecretText | None = Field(
        default=None, description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )
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
    """Table and write mode of an action's rows."""

    table: str = Field(
        min_length=1,
        pattern=r"^[^.\s\x00]+(\.[^.\s\x00]+)?$",
        description="Name of the table, `name` or `schema.name`, in the case of the database.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Templates by column, such as `${temp}`. Default: members of the row by their names.",
    )
    unknown_columns: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="Rows with members that have no column: refuse gives them up, ignore writes the rest.",
    )
    mode: Literal["insert", "upsert"] = Field(
        default="insert", description="insert adds rows; upsert replaces the one with the same key."
    )
    key: list[str] = Field(
        default_factory=list,
        description="Columns of the key for upsert. Default: the table's primary key.",
    )
    create_table: bool = Field(
        default=False,
        description="Whether a missing table is created, with the column types that rules infer.",
    )

    @model_validator(mode="after")
    def _fits(self) -> PostgresActionSettings:
        if self.key and self.mode == "insert":
            raise ValueError("key has no effect with mode insert; use mode upsert")
        if self.columns and (absent := [name for name in self.key if name not in self.columns]):
            raise ValueError(f"key: {absent[0]!r} has no template in columns")
        if self.create_table and self.mode == "upsert" and not self.key:
            raise ValueError(
                "a table that is created for upsert needs key, the columns of its primary key"
            )
        return self
