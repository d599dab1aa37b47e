"""Protobuf schemas that come compiled: ``protoc --include_imports --descriptor_set_out=... file.proto``, in base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_NAME = re.compile(r"[\w./+-]+", re.ASCII)


def descriptor_files(source: str) -> Sequence[Any] | None:
    """The files of a ``FileDescriptorSet``, or the one that is a ``FileDescriptorProto`` (as Confluent's clients send).

    None where the source is neither: text of a ``.proto`` file has braces and semicolons, base64 has none.
    """
    if not _BASE64.fullmatch(source):
        return None
    try:
        data = base64.b64decode("".join(source.split()), validate=True)
    except binascii.Error:
        return None
    return _set(data) or _single(data)


def _set(data: bytes) -> Sequence[Any] | None:
    try:
        files = FileDescriptorSet.FromString(data).file
    except DecodeError:
        return None
    return list(files) if files and all(_NAME.fullmatch(file.name) for file in files) else None


def _single(data: bytes) -> Sequence[Any] | None:
    try:
        file = FileDescriptorProto.FromString(data)
    except DecodeError:
        return None
    return [file] if _NAME.fullmatch(file.name or "-") and (file.message_type or file.enum_type) else None
