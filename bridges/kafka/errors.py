"""Errors of Kafka and of the connection to it, as errors of bridges."""

from __future__ import annotations

import os
import re
import ssl
from typing import Final

from aiokafka import errors as kafka

from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    TryAgain,
    understood,
)

_NEVER: Final = (
    kafka.MessageSizeTooLargeError,
    kafka.RecordListTooLargeError,
    kafka.RecordTooLargeError,
    kafka.InvalidTimestampError,
    kafka.CorruptRecordException,
    kafka.PolicyViolationError,
)
_MISSING: Final = (kafka.UnknownTopicOrPartitionError, kafka.InvalidTopicError)
# Rights on one topic, group or ID; other traffic of the login continues.
_UNUSABLE: Final = (
    kafka.TopicAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.TransactionalIdAuthorizationFailed,
)
_BAD_SETTINGS: Final = (
    kafka.ClusterAuthorizationFailedError,
    kafka.SaslAuthenticationFailed,
    kafka.AuthenticationFailedError,
    kafka.AuthenticationMethodNotSupported,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
    kafka.InvalidRequiredAcksError,
    kafka.UnsupportedForMessageFormatError,
)
_TRY_AGAIN: Final = (
    kafka.NotEnoughReplicasError,
    kafka.NotEnoughReplicasAfterAppendError,
    kafka.LeaderNotAvailableError,
    kafka.NotLeaderForPartitionError,
    kafka.RequestTimedOutError,
    kafka.KafkaStorageError,
    kafka.QuotaViolationError,
)
_REASON: Final = re.compile(r"^(\[Error \d+\] )?\w+Error: ?|^\[Error \d+\] \w+: ?")


def meant(error: BaseException, where: str) -> BridgeError:
    """Any error as those of bridges; ``where`` is the cluster's address, or the topic it is about."""
    if isinstance(error, BridgeError):
        return error
    text = f"{where}: {said(error)}"
    if isinstance(error, _NEVER):
        return NeverAgain(text)
    if isinstance(error, _MISSING):
        return TargetMissing(text)
    if isinstance(error, _UNUSABLE):
        return TargetUnusable(
            f"{where}: {_words(type(error).__name__)}; grant the login what it needs"
        )
    if isinstance(error, _BAD_SETTINGS):
        return BadSettings(text)
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadSettings(f"{where}: its certificate is not accepted: {error.verify_message}")
    if isinstance(error, _TRY_AGAIN):
        return TryAgain(text)
    if isinstance(error, (kafka.KafkaError, OSError, TimeoutError)):
        return ReconnectFirst(text)
    return understood(error)


def said(error: BaseException) -> str:
    """An error in words: Kafka's own without its number, else its class's name."""
    if isinstance(error, kafka.BrokerResponseError) and not error.args:
        return str(error.description or error.message.lower().replace("_", " "))
    if isinstance(error, TimeoutError):
        return "no answer"
    text = _REASON.sub("", str(error)).strip()
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        text = os.strerror(error.errno).lower()  # asyncio says "connect call failed" there
    return text or _words(type(error).__name__)


def _words(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name.removesuffix("Error")).lower()
