"""The management API as commands use it: answers as plain data, errors as sentences with exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from broker.cli import exit_codes
from broker.cli.errors import CommandError
from broker.cli.target import Target

if TYPE_CHECKING:
    import httpx

BASE = "/api/v1"
PAGE_SIZE = 500
# Bound on a list, against a server that never says it ends.
MOST_PAGES = 10_000

_EXIT_CODES = {
    401: exit_codes.NOT_ALLOWED,
    403: exit_codes.NOT_ALLOWED,
    404: exit_codes.NOT_FOUND,
    409: exit_codes.CONFLICT,
    412: exit_codes.CONFLICT,
}


class ApiClient:
    """Blocking; one connection.

    Raises (all calls):
        CommandError: no answer, or an error answer, with the exit code that fits.
    """

    def __init__(self, target: Target, timeout_s: float = 30.0, *, is_dry: bool = False) -> None:
        self._target = target
        self._is_dry = is_dry
        self.effects: list[tuple[str, dict[str, Any]]] = []
        """The path of each write of a dry run, and what it would change."""
        headers = {"User-Agent": "sluice-cli"}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        import httpx

        # Proxies of the environment are for the world outside; a broker is reached as its address says.
        url = _checked_url(target.url)
        # Certificates are loaded for HTTPS only: reading the system's takes as long as many commands.
        self._http = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=timeout_s,
            trust_env=False,
            verify=urlsplit(url).scheme == "https",
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, **parameters: str | float) -> Any:
        """The answer to a GET."""
        return self._request("GET", path, parameters=parameters).json

    def lines(self, path: str, **parameters: str | float) -> Iterator[Any]:
        """The objects of a stream, as they come."""
        import httpx

        try:
            with self._http.stream("GET", BASE + path, params=parameters) as response:
                if not response.is_success:
                    response.read()
                    raise self._refused(response)
                for line in response.iter_lines():
                    yield json.loads(line)
        except httpx.TimeoutException:
            raise self._not_reachable("does not answer in time") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._not_reachable(f"cannot be reached ({_reason(error)})") from None

    def download(self, path: str, body: Any) -> Iterator[bytes]:
        """The bytes that a POST answers with, as they come."""
        import httpx

        try:
            with self._http.stream("POST", BASE + path, json=body) as response:
                if not response.is_success:
                    response.read()
                    raise self._refused(response)
                yield from response.iter_raw()
        except httpx.TimeoutException:
            raise self._not_reachable("does not answer in time") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._not_reachable(f"cannot be reached ({_reason(error)})") from None

    def post_bytes(self, path: str, data: bytes, media_type: str, **parameters: str | float) -> Any:
        """The answer to a POST of something other than JSON."""
        return self._request(
            "POST", path, parameters=parameters, data=data, media_type=media_type
        ).json

    def put(self, path: str, body: Any) -> tuple[Any, bool]:
        """Create or replace; the object, and whether it is new."""
        answer = self._request("PUT", path, body=body)
        return answer.json, answer.status == 201

    def post(self, path: str, body: Any = None, *, prefer: str | None = None) -> Any:
        """The answer to a POST."""
        return self._request("POST", path, body=body, prefer=prefer).json

    def patch(self, path: str, body: Any) -> Any:
        """Change some members of an object; the object."""
        return self._request("PATCH", path, body=body).json

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._request("DELETE", path)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request that changes something."""
        return self._request(method, path, body=body).json

    def effect_of(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The effect that a request would have."""
        asked = f"{path}{'&' if '?' in path else '?'}dry_run=true"
        effect: dict[str, Any] = self._request(method, asked, body=body).json
        return effect

    def items(self, path: str, **filters: str) -> Iterator[dict[str, Any]]:
        """All objects of a list, page by page."""
        parameters: dict[str, str | int] = {"limit": PAGE_SIZE, **filters}
        for _ in range(MOST_PAGES):
            page = self.get(path, **parameters)
            yield from page["items"]
            if not page.get("next"):
                return
            parameters["cursor"] = page["next"]
        raise CommandError(f"{path} has more than {MOST_PAGES} pages")

    def _request(
        self,
        method: str,
        path: str,
        *,
        parameters: dict[str, str | float] | None = None,
        body: Any = None,
        prefer: str | None = None,
        data: bytes | None = None,
        media_type: str | None = None,
    ) -> _Answer:
        import httpx

        is_dry = self._is_dry and method != "GET"
        if is_dry:
            path += f"{'&' if '?' in path else '?'}dry_run=true"
        try:
            optional = {"Prefer": prefer, "Content-Type": media_type}
            headers = {name: value for name, value in optional.items() if value is not None} or None
            response = self._http.request(
                method,
                BASE + path,
                params=parameters or None,
                json=body,
                content=data,
                headers=headers,
            )
        except httpx.TimeoutException:
            raise self._not_reachable("does not answer in time") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._not_reachable(f"cannot be reached ({_reason(error)})") from None
        if response.is_success:
            answer = _Answer(response.status_code, self._decoded(response))
            if is_dry:
                self.effects.append((path, answer.json))
            return answer
        raise self._refused(response)

    def _decoded(self, response: httpx.Response) -> Any:
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise CommandError(
                f"{self._target.url} answers, but not as Sluice's management API does",
                exit_codes.NOT_REACHABLE,
                hint="check --url; the management API is the address after 'api=' that 'sluice serve' prints",
            ) from None

    def _not_reachable(self, why: str) -> CommandError:
        return CommandError(
            f"the broker at {self._target.url} {why}",
            exit_codes.NOT_REACHABLE,
            hint="sluice serve --data-dir DIR, or name a running broker with --url or SLUICE_URL",
        )

    def _refused(self, response: httpx.Response) -> CommandError:
        exit_code = _EXIT_CODES.get(response.status_code, exit_codes.FAILED)
        document = _problem_document(response)
        if response.status_code in (401, 403):
            return CommandError(
                f"the broker at {self._target.url} does not allow this: {_detail(document, response)}",
                exit_code,
                hint="set SLUICE_API_TOKEN to an administrator's token, or name the broker's directory by --data-dir",
                document=document,
            )
        is_used = (document or {}).get("code") == "in_use" and response.request.method == "DELETE"
        hint = (
            "--cascade removes what uses it too; with --dry-run it only lists that"
            if is_used
            else None
        )
        return CommandError(
            _detail(document, response),
            exit_code,
            hint=hint,
            details=_details(document),
            document=document,
        )


class _Answer:
    __slots__ = ("json", "status")

    def __init__(self, status: int, json: Any) -> None:
        self.status = status
        self.json = json


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_url = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_url = False
    if not is_url:
        raise CommandError(f"{url!r} is not a URL", exit_codes.USAGE, hint="--url http://HOST:PORT")
    return url


def name_path(path: str, name: str) -> str:
    """The path of one object of a kind."""
    return f"{path}/{quote(name, safe='')}"


def _problem_document(response: httpx.Response) -> dict[str, Any] | None:
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _detail(document: dict[str, Any] | None, response: httpx.Response) -> str:
    """The sentence; where each error is listed below it, what all have in common."""
    if document is None:
        return f"the broker answers {response.status_code} {response.reason_phrase}"
    if _details(document):
        return str(document.get("title") or document.get("detail"))
    return str(document.get("detail") or document.get("title") or f"status {response.status_code}")


def _details(document: dict[str, Any] | None) -> list[str]:
    """``/sql line 2, column 8: no function 'avgg'; did you mean 'avg'?`` for each error."""
    errors = (document or {}).get("errors")
    return (
        [_entry(error) for error in errors if isinstance(error, dict)]
        if isinstance(errors, list)
        else []
    )


def _entry(error: dict[str, Any]) -> str:
    place = [str(error["pointer"])] if error.get("pointer") else []
    if error.get("line") is not None:
        column = f", column {error['column']}" if error.get("column") is not None else ""
        place.append(f"line {error['line']}{column}")
    suggestion = f"; {error['suggestion']}" if error.get("suggestion") else ""
    return f"{' '.join(place)}{': ' if place else ''}{error.get('message', '')}{suggestion}"


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    text = getattr(cause, "strerror", None) or str(error)
    return str(text).lower()
