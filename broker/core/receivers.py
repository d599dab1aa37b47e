"""Registry between the HTTP server and sources that take posted data: sources register here, the API asks here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.core.errors import Problem, SluiceError


class PostRefused(SluiceError):
    """A request that is not taken: the status and code of the answer, its headers, and the problems with their
    places."""

    code = "refused"

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.code, self.errors, self.headers = (
            status,
            code,
            tuple(errors),
            dict(headers or {}),
        )
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Post:
    """A request whose body has not been read yet.

    ``path`` is what is behind the receiver's name, decoded, without a slash at its begin. Names of ``headers`` are
    in lower case; of ``query`` and ``headers`` the last value of a name counts. ``read`` gives the body as it was sent,
    or raises ``PostRefused`` (413) where it is longer than the given number of bytes. ``authenticated`` is called once
    the sender has authenticated.
    """

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    peer_host: str | None
    read: Callable[[int], Awaitable[bytes]]
    authenticated: Callable[[], object] = lambda: None


class Receiver(Protocol):
    """Takes what is posted to one name."""

    async def receive(self, post: Post) -> Mapping[str, Any]:
        """Take a request; return the answer once all its effects are committed.

        Raises:
            PostRefused: it is not taken.
            broker.core.errors.Unavailable: not now; nothing, or not all of it, was committed.
        """


class Receivers:
    """The receivers of a node, by name."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def add(self, name: str, receiver: Receiver) -> None:
        """Register a receiver, in place of the one of that name."""
        self._receivers[name] = receiver

    def remove(self, name: str, receiver: Receiver) -> None:
        """Forget a receiver, unless another has taken its place."""
        if self._receivers.get(name) is receiver:
            del self._receivers[name]

    def find(self, name: str) -> Receiver | None:
        """The receiver of that name; None while there is none."""
        return self._receivers.get(name)
