"""Failure of a transformation, with its reason."""

from __future__ import annotations

from typing import Any


class TransformationFailed(Exception):
    """A transformation could not be carried out; nothing of it remains.

    ``kind`` is a stable word (``payload_decode_failed``, ``transformation_eval_operation_failure``, ...), ``operation``
    counts from 0 where an operation failed, ``is_payload`` means that a decoder, an encoder or their schema refused the
    payload.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        operation: int | None = None,
        is_payload: bool = False,
        **details: Any,
    ) -> None:
        self.kind = kind
        self.message = message
        self.operation = operation
        self.is_payload = is_payload
        self.details = details
        super().__init__(message)
