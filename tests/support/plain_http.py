"""HTTP without TLS. Reading the system's certificates, as httpx does for each client, takes longer than most tests."""

from __future__ import annotations

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""``verify=`` of a client that has no use for TLS: made once, and it trusts nobody."""
