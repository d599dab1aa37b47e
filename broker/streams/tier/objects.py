"""The objects of tiers: in an object store of ``lake.stores``, or in a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from broker.core.errors import MissingDependency, SluiceError, Unavailable
from broker.core.store_clients import ATTEMPTS, client_options, store_options, store_says

# Time limit for a listing, or a piece of an object.
_ANSWER_S: Final = 8
_UPLOAD_S: Final = 30
_REMEMBERED: Final = 8


class TierStore:
    """Objects under the URL of a tier. Blocking; may be used from several threads.

    Raises (all calls):
        Unavailable: the store does not do it; says why.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """``options`` say how the store is reached, by the names of its settings."""
        self._url, own_options = url, tuple(sorted(options.items()))
        with self._translated():
            self._reading = _opened(url, own_options, _ANSWER_S, ATTEMPTS)
            self._uploading = _opened(url, own_options, _UPLOAD_S, 0)

    def put_new(self, name: str, content: bytes) -> None:
        """Write an object unless there is one of that name."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._translated(), suppress(AlreadyExistsError):
            obstore.put(self._uploading, name, content, mode="create", use_multipart=False)

    def size_of(self, name: str) -> int | None:
        """The size of an object in bytes, None if it does not exist."""
        import obstore

        with self._translated():
            try:
                return int(obstore.head(self._reading, name)["size"])
            except FileNotFoundError:
                return None

    def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes ``[start, end)`` of an object.

        Raises:
            ObjectMissing: there is none of that name.
        """
        import obstore

        with self._translated():
            try:
                return bytes(obstore.get_range(self._reading, name, start=start, end=end))
            except FileNotFoundError:
                raise ObjectMissing(f"{self._url}/{name}") from None

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone are passed over."""
        import obstore

        for name in names:
            with self._translated(), suppress(FileNotFoundError):
                obstore.delete(self._uploading, [name])

    def sizes(self, folder: str, behind: str | None = None) -> Iterator[tuple[str, int]]:
        """The names in a folder, those that sort behind one, and their sizes, in no order."""
        import obstore

        offset = None if behind is None else f"{folder}/{behind}"
        with self._translated():
            for some in obstore.list(self._reading, folder, offset=offset, chunk_size=1000):
                for item in some:
                    yield item["path"].rpartition("/")[2], item["size"]

    def check(self) -> None:
        """Ask for an answer."""
        for _ in self.sizes("_answers"):
            return

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SluiceError, GeneratorExit):
            raise
        except ImportError as error:
            raise MissingDependency(
                "tier: expected the package obstore. Try: pip install 'sluicemq[tier]'"
            ) from error
        except Exception as error:  # obstore has no common class for its errors
            raise Unavailable(_sentence(str(error), self._url)) from error


class ObjectMissing(SluiceError):
    """An object that is recorded is not there."""

    code = "segment_missing"

    def __init__(self, name: str) -> None:
        super().__init__(f"the segment {name} is missing in the store")


class TierStores:
    """Opens the stores of tiers, with the settings of ``lake.stores`` as another process was given them."""

    def __init__(self, stores: Sequence[Mapping[str, Any]]) -> None:
        self._stores, self._opening = stores, threading.Lock()

    def use(self, stores: Sequence[Mapping[str, Any]]) -> None:
        """Take other settings; they are read at the next use of a store."""
        self._stores = stores

    def at(self, url: str) -> TierStore:
        """The store at a URL, with the credentials that there are now.

        Raises:
            Unavailable: no store of ``lake.stores`` holds the URL.
            SecretUnreadable: a variable or file that a secret refers to is not there.
            MissingDependency: obstore is not installed.
        """
        return TierStore(url, self._options(url) if "://" in url else {})

    def _options(self, url: str) -> dict[str, str]:
        from broker.config.allowed import trusted
        from broker.config.object_stores import StoreSettings, store_of

        with self._opening, trusted():
            store = store_of(
                url,
                [StoreSettings.model_validate(store_settings) for store_settings in self._stores],
            )
            if store is None:
                raise Unavailable(
                    f"tier: expected a URL in one of the stores of lake.stores, got {url}"
                )
            return store.options()


def _sentence(trace: str, url: str) -> str:
    """Error as a sentence; the lines after the first are left out, since they may hold the query of a signed URL."""
    return (
        store_says(trace, url)
        or f"the store of {url} cannot be used: {trace.partition(chr(10))[0].partition('?')[0]}"
    )


@lru_cache(maxsize=_REMEMBERED)
def _opened(
    url: str, option_items: tuple[tuple[str, str], ...], answer_s: int, attempts: int
) -> Any:
    from obstore.store import LocalStore, from_url

    if "://" not in url:
        Path(url).mkdir(parents=True, exist_ok=True)
        return LocalStore(url)
    options = dict(option_items)
    config: Any = store_options(url, options)
    client: Any = client_options(options, answer_s)
    retry: Any = {"max_retries": attempts, "retry_timeout": timedelta(seconds=answer_s)}
    return from_url(url, config=config, client_options=client, retry_config=retry)
