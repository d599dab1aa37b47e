"""The management API as the lake's jobs use it: which tables there are, and how they are doing."""

from __future__ import annotations

import json
import urllib.error
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from broker.core.errors import NotFound, SluiceError, Unavailable
from broker.core.reader_token import reader_token
from pyspark_sluice.client import StreamClient, open_url

Spec = dict[str, Any]


class LakeApi:
    """Blocking; each call is one request.

    Raises (all calls):
        Unavailable: no answer; may succeed later.
        SluiceError: the broker refuses.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.token = token

    def tables(self) -> list[Spec]:
        """The specs of all tables, with the columns that the API knows."""
        tables: list[Spec] = self._call("POST", "tables:open", b"")["tables"]
        return tables

    def table(self, name: str) -> Spec:
        """One table's spec.

        Raises:
            NotFound: there is none of that name.
        """
        spec = next((spec for spec in self.tables() if spec["name"] == name), None)
        if spec is None:
            raise NotFound("lake table", name)
        return spec

    def report(self, name: str, report: Spec) -> None:
        """Say how a table is doing."""
        self._call("PUT", f"tables/{quote(name, safe='')}/report", json.dumps(report).encode())

    def stream(self, name: str, deadline_s: float = 60.0) -> StreamClient:
        """A client for a stream of the same broker."""
        return StreamClient(self.url, self.token, name, deadline_s)

    def reader_token(self, stream: str) -> str:
        """The token that executors read a stream with."""
        return reader_token(self.token, stream)

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        url = f"{self.url}/api/v1/lake/{path}"
        try:
            with open_url(url, self.token, method=method, body=body) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise NotFound("lake table", path.partition("/")[2]) from error
            if error.code in (401, 403):
                raise SluiceError(
                    f"the broker at {self.url} refuses the token; set SLUICE_API_TOKEN"
                ) from error
            raise Unavailable(
                f"the broker at {self.url} answers {error.code} to {method} lake/{path}"
            ) from error
        except (OSError, HTTPException) as error:
            raise Unavailable(f"no answer from the broker at {self.url}: {error}") from error
        return json.loads(text) if text else None
