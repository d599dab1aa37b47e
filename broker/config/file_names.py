"""Names of configuration files in a data directory."""

from __future__ import annotations

from typing import Final

BASE_FILE: Final = "base.hocon"
API_FILE: Final = "api.hocon"
"""The file that the API writes."""
MAIN_FILE: Final = "sluice.conf"
MAIN_DIRECTORY: Final = "conf.d"
