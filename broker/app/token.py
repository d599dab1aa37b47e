"""The administrator's token of the management API."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.core.errors import ConfigError

TOKEN_VARIABLE: Final = "SLUICE_API_TOKEN"
TOKEN_FILE: Final = "api.token"
MIN_TOKEN_LENGTH: Final = 12


def administrator_token(data_dir: Path, environ: Mapping[str, str]) -> str:
    """The token from the environment, else the one kept in the data directory, created at the first start.

    The file is readable by its owner only. A token from the environment is never written.

    Raises:
        ConfigError: the token is too short, or the file cannot be read or created.
    """
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return _checked(token, TOKEN_VARIABLE)
    file = data_dir / TOKEN_FILE
    try:
        return _checked(_kept_or_new(file), str(file))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = "make the data directory writable for this user, or choose another with --data-dir"
        raise ConfigError([f"the administrator's token cannot be kept in {file} ({reason}); {advice}"]) from error


def _checked(token: str, place: str) -> str:
    if len(token) < MIN_TOKEN_LENGTH:
        problem = f"expected a token of at least {MIN_TOKEN_LENGTH} characters, got {len(token)}"
        raise ConfigError([f"{place}: {problem}. Try: openssl rand -base64 32"])
    return token


def _kept_or_new(file: Path) -> str:
    if file.exists() and (kept := file.read_text().strip()):
        return kept
    token = secrets.token_urlsafe(32)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(token + "\n")
    return token
