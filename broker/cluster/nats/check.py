"""What a start asks of NATS: that a server answers, is new enough, has JetStream, and writes before it confirms."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from broker.cluster.nats.line import Line, Servers
from broker.cluster.nats.log import problem_of_stream
from broker.cluster.nats.server import program
from broker.core.errors import ConfigError, Unavailable
from broker.observe.log import get_logger

_log = get_logger(__name__)

_OLDEST: Final = (2, 12)
# Bytes of a message that a server must take: a commit is sent in as many as it needs.
_LEAST_PAYLOAD: Final = 64 * 1024
_ASK_S: Final = 5.0
_MOST_BYTES: Final = 1024 * 1024
_NOT_ENABLED: Final = frozenset((10039, 10076))


def problems_of(places: Servers, count: int) -> list[str]:
    """Sentences about the servers; none where all is well, or where no majority of them runs yet. Blocks."""
    problems = []
    answered = 0
    for place in range(count):
        host, port = places.addresses[place]
        alone = Line(
            Servers([(host, port)], places.user, places.password, places.tls), "start of sluice"
        )
        try:
            # a server answers by itself to this one; its account may have no JetStream
            answer = json.loads(alone.ask("$JS.API.INFO", b"", _ASK_S).payload or b"{}")
        except Unavailable as error:
            problems.append(f"{host}:{port}: {error}")
            continue
        finally:
            alone.close()
        answered += 1
        version = alone.info["version"]
        if _is_too_old(version):
            text = f"expected nats-server 2.12 or newer at {host}:{port}, got {version}"
            return [f"cluster.nats.servers: {text}"]
        if (payload := alone.info.get("max_payload", _LEAST_PAYLOAD)) < _LEAST_PAYLOAD:
            text = f"expected max_payload of {_LEAST_PAYLOAD} bytes or more at {host}:{port}, got {payload}"
            return [f"cluster.nats.servers: {text}"]
        code = answer.get("error", {}).get("err_code")
        if not alone.info.get("jetstream") or code in _NOT_ENABLED:
            text = f"JetStream is not enabled at {host}:{port}; add 'jetstream {{ sync_interval: always }}'"
            return [f"cluster.nats.servers: {text} to its configuration"]
    return [] if answered else [f"cluster.nats.servers: none answers: {'; '.join(problems)}"]


def problems_of_name(places: Servers, name: str, cluster: str) -> list[str]:
    """Sentences about a log that another cluster of this name has in NATS; ``cluster`` is the digest of this one.
    None where there is no log yet, or that is not known now. Blocks."""
    stream = f"sluice_{name}_0"
    with closing(Line(places, "start of sluice")) as line:
        try:
            answer = json.loads(line.ask(f"$JS.API.STREAM.INFO.{stream}", b"", _ASK_S).payload)
        except (Unavailable, ValueError):
            return []
    problem = problem_of_stream(answer.get("config", {}), stream, cluster)
    return [problem] if problem else []


def problems_of_sync(monitors: Sequence[str]) -> list[str]:
    """Sentences about servers that confirm before they have written, by what their monitoring says (``/jsz``,
    docs.nats.io/running-a-nats-service/nats_admin/monitoring). One that does not answer may not run yet. Blocks."""
    problems = []
    for address in monitors:
        try:
            # past a proxy of the environment: the address is of the machine itself, or of one of its network
            with closing(HTTPConnection(address, timeout=_ASK_S)) as link:
                link.request("GET", "/jsz")
                config = json.loads(link.getresponse().read(_MOST_BYTES))["config"]
        except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
            _log.warning("nats.sync_not_known", server=address, reason=str(error))
            continue
        if not (isinstance(config, dict) and config.get("sync_always")):
            problems.append(
                f"cluster.nats.monitors: the server of NATS at {address} confirms before it has written to its disk; "
                "add 'sync_interval: always' to its section 'jetstream'"
            )
    if not monitors:
        _log.warning(
            "nats.sync_not_known",
            reason="cluster.nats.monitors is empty, so 'sync_interval: always' of the servers was not checked",
        )
    return problems


def problems_of_own(host: str, certfile: str) -> list[str]:
    """Sentences about the server that this machine is to run at an address. Blocks."""
    try:
        found = program()
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    except ConfigError as error:
        return list(error.problems)
    except (OSError, subprocess.CalledProcessError) as error:
        return [f"cluster.nats.run: nats-server cannot be run: {error}"]
    version = said.stdout.strip().rpartition(" v")[-1]
    if not re.match(r"\d+\.\d+", version) or _is_too_old(version):
        return [f"cluster.nats.run: expected nats-server 2.12 or newer at {found}, got {version}"]
    try:
        names = _names_in(Path(certfile).read_bytes())
    except (OSError, ValueError) as error:
        return [f"cluster.tls.certfile: {error}"]
    if _normal(host) not in map(_normal, names):
        text = f"expected a certificate for {host} too, as its server of NATS needs"
        return [f"cluster.tls.certfile: {text}; got one for {', '.join(names) or 'no name'}"]
    return []


def _normal(host: str) -> str:
    """A host as any other way to write it gives it."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _names_in(pem: bytes) -> list[str]:
    """The names and addresses that a certificate is for. Raises ``ValueError``."""
    from cryptography import x509

    extensions = x509.load_pem_x509_certificate(pem).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


def _is_too_old(version: str) -> bool:
    return tuple(map(int, version.split("-")[0].split(".")[:2])) < _OLDEST
