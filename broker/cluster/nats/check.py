"""What a start asks of NATS: that a server answers, is new enough, and has JetStream."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final

from broker.cluster.nats.line import Line, Servers
from broker.cluster.nats.server import program
from broker.core.errors import ConfigError, Unavailable

_OLDEST: Final = (2, 12)
_ASK_S: Final = 5.0
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
        code = answer.get("error", {}).get("err_code")
        if not alone.info.get("jetstream") or code in _NOT_ENABLED:
            text = f"JetStream is not enabled at {host}:{port}; add 'jetstream {{ sync_interval: always }}'"
            return [f"cluster.nats.servers: {text} to its configuration"]
    return [] if answered else [f"cluster.nats.servers: none answers: {'; '.join(problems)}"]


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
    if host not in names:
        text = f"expected a certificate for {host} too, as its server of NATS needs"
        return [f"cluster.tls.certfile: {text}; got one for {', '.join(names) or 'no name'}"]
    return []


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
