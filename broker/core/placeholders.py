"""The grammars of ``${...}`` in texts that users write. Each kind of text uses one of them.

* ``ROW_PLACEHOLDER``: templates of actions and bridges (``broker.core.template``). A path of a row or nothing,
  perhaps after ``raw:``, or ``$``.
* ``CLIENT_PLACEHOLDER``: topics of access rules and claims of JSON web tokens. A name of the client.
* ``ANY_PLACEHOLDER``: automatic subscriptions and topic rewrites, which check the names themselves.
* ``SECRET_REFERENCE``: secrets in settings. ``secret:NAME``, ``env:NAME`` or ``file:PATH``; ``sealed:...`` between
  processes (``broker.config.vault``).
"""

from __future__ import annotations

import re
from typing import Final

_PATH: Final = "[A-Za-z0-9._]"
_RAW: Final = "(?:raw:)?"

ROW_PLACEHOLDER: Final = re.compile(rf"\$\{{({_RAW}{_PATH}*|\$)\}}")
# A path alone.
PATH_PLACEHOLDER: Final = re.compile(rf"\$\{{{_PATH}+\}}")
# A path, or nothing for the whole row.
ROW_OR_PATH_PLACEHOLDER: Final = re.compile(rf"\$\{{{_PATH}*\}}")
# Looks like a placeholder of a row and is literal text, as ``${a[1]}`` and ``${ a }``: probably a mistake.
NOT_PLACEHOLDER: Final = re.compile(rf"\$\{{(?!{_RAW}{_PATH}*\}})[^{{}}$]*\}}")
# The same, in texts that may hold secrets.
NOT_PLACEHOLDER_OR_SECRET: Final = re.compile(
    rf"\$\{{(?!({_RAW}{_PATH}*|\$|(secret|env|file):[^}}]*)\}})"
)
CLIENT_PLACEHOLDER: Final = re.compile(r"\$\{([a-zA-Z_][a-zA-Z0-9_.\-]*)\}")
ANY_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
# The same, or ``$1`` for a group of a regular expression.
PLACEHOLDER_OR_GROUP: Final = re.compile(r"\$([0-9]+)|\$\{([^}]*)\}")
SECRET_REFERENCE: Final = re.compile(r"\$\{(secret|env|file|sealed):([^}]+)\}")
# A reference to a named secret, anywhere in a string.
NAMED_SECRET: Final = re.compile(r"\$\{secret:([^}]+)\}")


def why_misplaced(reference: str) -> str:
    """The problem with a reference to a named secret in a topic, payload or other text that is sent or shown."""
    return (
        f"{reference}: expected no reference to a secret here, since topics, payloads and logs would show it. "
        "Try: a header, password or token of a connector"
    )
