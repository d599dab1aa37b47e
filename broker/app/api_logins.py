"""Logins to the management API, held to the same limits as those of MQTT clients."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from broker.auth.login_limits import LoginLimits, network_of
from broker.observe.log import get_logger

log = get_logger(__name__)

_ADMINISTRATOR: Final = "administrator of the API"
_MAX_ADDRESSES: Final = 10_000


class ApiLogins:
    """Counts tokens and codes by the address that sent them. An address whose token was right before may continue to
    use it whatever else comes from there. The same wrong token again is not another guess: a script with an outdated
    token locks out no other client of its address."""

    def __init__(self, limits: LoginLimits) -> None:
        self._limits = limits
        self._wrong: dict[str, bytes] = {}

    def refuses(self, host: str | None, shown: str, is_right: bool) -> bool:
        """True if an attempt is refused because too many from this address failed; counts the attempt otherwise."""
        place = f"api {network_of(host)}"
        if is_right and self._limits.knows(place, _ADMINISTRATOR):
            return False
        digest = sha256(shown.encode(errors="surrogateescape")).digest()
        if not is_right and self._wrong.get(place) == digest:
            return False
        if self._limits.refuses(place, _ADMINISTRATOR):
            return True
        if is_right:
            self._limits.succeeded(place, _ADMINISTRATOR)
        else:
            self._limits.failed(place, _ADMINISTRATOR)
            self._wrong[place] = digest
            if len(self._wrong) > _MAX_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]
            log.warning("api.login_failed", address=host)
        return False

    def retry_after_s(self) -> int:
        """Seconds until the next attempt is accepted."""
        settings = self._limits.settings
        return max(1, round(settings.window / settings.max_failures_per_user))
