"""Settings of the node itself."""

from __future__ import annotations

from pydantic import Field, field_validator

from broker.app.loops import LoopName
from broker.config.model import Settings
from broker.config.units import Duration

_NO_LEVEL = frozenset("/+#\0")


class NodeSettings(Settings):
    """Section ``node``."""

    name: str = Field(
        "sluice", min_length=1, description="Name of this node, in events, metrics, `$SYS` topics and the API; without "
        "`/`, `+` and `#`."
    )  # fmt: skip
    shutdown_timeout: Duration = Field(
        10, gt=0, description="Seconds that a broker which is told to stop gives publishes under way and clients that "
        "read slowly."
    )  # fmt: skip
    wills_on_shutdown: bool = Field(
        False, description="Whether wills of connected clients are published when the broker stops."
    )
    event_loop: LoopName = Field(
        "auto", description="`uvloop`, or `asyncio` for Python's own loop, which is slower. `auto` takes uvloop where "
        "it is installed."
    )  # fmt: skip

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NO_LEVEL.isdisjoint(value):
            raise ValueError(
                f"{value!r} has to be one level of $SYS topics; leave '/', '+', '#' and NUL out"
            )
        return value


class AccessSettings(Settings):
    """Section ``access``."""

    allow_anonymous: bool = Field(
        False,
        description="Whether clients without credentials are accepted on addresses other than loopback.",
    )
