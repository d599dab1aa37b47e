"""Forms of ``multipart/form-data`` (RFC 7578), for the call that takes an archive."""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker.core.errors import Invalid

MAX_PARTS = 20
_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'\bname="([^"\r\n]*)"')


def form_parts(content_type: str, body: bytes) -> Mapping[str, bytes]:
    """The parts of a form by their names; of two with one name the last.

    Raises:
        Invalid: it is no such form.
    """
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise Invalid("the body must be a form of multipart/form-data, with its boundary in Content-Type")
    boundary = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(b"\r\n" + boundary, MAX_PARTS + 2)
    if not parts or not parts[-1].startswith(b"--") or len(parts) > MAX_PARTS + 1:
        raise Invalid(f"the form does not end as it must, or has more than {MAX_PARTS} parts")
    return dict(map(_part, parts[:-1]))


def _part(part: bytes) -> tuple[str, bytes]:
    head, separator, content = part.partition(b"\r\n\r\n")
    name = _NAME.search(head)
    if not separator or name is None:
        raise Invalid("a part of the form has no name")
    return name[1].decode(errors="replace"), content
