"""Requests of the broker to its own range server, which alone reads the topic index and the tiers."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import urlencode

from broker.core import jsontext
from broker.core.errors import Unavailable
from broker.storage.store import LogShard

_TIMEOUT_S: Final = 30.0
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_MAX_PROBLEM_BYTES: Final = 65_536


class RangeAccess(NamedTuple):
    """Address and credentials of this broker's range server. ``certfile`` is the certificate that it shows, None for
    HTTP.
    """

    host: str
    port: int
    ticket: str
    certfile: str | None


class RangeClient:
    """Asks the range server. Blocking: for threads."""

    def __init__(self, access: Callable[[int], RangeAccess]) -> None:
        self._access = access

    @contextmanager
    def ask(
        self, shard: LogShard, query: dict[str, str | int]
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer about a shard.

        Raises:
            Unavailable: it does not answer, or refuses; says why.
        """
        access = self._access(shard.log)
        connection = _connection(access)
        try:
            headers = {"authorization": f"Bearer {access.ticket}"}
            connection.request(
                "GET", f"/streams/{shard.log}/{shard.shard}?{urlencode(query)}", headers=headers
            )
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise Unavailable(_problem(answer))
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"the range server does not answer: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()


def _connection(access: RangeAccess) -> http.client.HTTPConnection:
    host = _ANY.get(access.host, access.host)
    if access.certfile is None:
        return http.client.HTTPConnection(host, access.port, timeout=_TIMEOUT_S)
    return http.client.HTTPSConnection(
        host, access.port, timeout=_TIMEOUT_S, context=_trusting(access.certfile)
    )


def _problem(answer: http.client.HTTPResponse) -> str:
    try:
        return str(jsontext.decode(answer.read(_MAX_PROBLEM_BYTES))["detail"])
    except (jsontext.JsonError, KeyError, TypeError):
        return f"the range server answers {answer.status}"


def _trusting(certfile: str) -> ssl.SSLContext:
    """Trust in this very certificate, by whatever name: it is the one of our own child."""
    context = ssl.create_default_context(cafile=certfile)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
