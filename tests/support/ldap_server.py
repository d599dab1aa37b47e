"""A real OpenLDAP for tests, with a directory of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.processes import ServerProcess, free_port

BASE = "dc=example,dc=org"
ADMIN = f"cn=admin,{BASE}"
PASSWORD = "correct horse battery"
_CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include {directory}/mqtt.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {directory}/slapd.pid
{tls}
database mdb
suffix "{base}"
rootdn "{admin}"
rootpw "{password}"
directory {directory}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by * none
"""
_SCHEMA = """\
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.4 NAME 'isSuperuser' EQUALITY booleanMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.7 SINGLE-VALUE )
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.5 NAME ( 'mqttPublishTopic' ) EQUALITY caseExactMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.6 NAME ( 'mqttSubscriptionTopic' ) EQUALITY caseExactMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.7 NAME ( 'mqttPubSubTopic' ) EQUALITY caseExactMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
objectclass ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.8 NAME 'mqttAccess' AUXILIARY
  MAY ( isSuperuser $ mqttPublishTopic $ mqttSubscriptionTopic $ mqttPubSubTopic ) )
"""


class LdapServer:
    """A directory below ``dc=example,dc=org`` on 127.0.0.1; ``ldif`` are its entries. With a certificate and its key it
    takes TLS only."""

    def __init__(self, ldif: str, certificate: tuple[str, str] | None = None) -> None:
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="sluice-ldap-"))
        (self._directory / "data").mkdir()
        (self._directory / "mqtt.schema").write_text(_SCHEMA)
        tls = ""
        if certificate is not None:
            tls = f"TLSCertificateFile {certificate[0]}\nTLSCertificateKeyFile {certificate[1]}"
        config = self._directory / "slapd.conf"
        members = {
            "base": BASE,
            "admin": ADMIN,
            "password": PASSWORD,
            "directory": self._directory,
            "tls": tls,
        }
        config.write_text(_CONFIG.format(**members))
        added = subprocess.run(
            [_program("slapadd"), "-f", str(config)],
            input=ldif,
            capture_output=True,
            text=True,
            check=False,
        )
        assert added.returncode == 0, added.stderr
        scheme = "ldap" if certificate is None else "ldaps"
        command = [
            _program("slapd"),
            "-f",
            str(config),
            "-h",
            f"{scheme}://127.0.0.1:{self.port}",
            "-d",
            "0",
        ]
        self.process = ServerProcess(command, self._directory, self._is_ready)

    def modify(self, ldif: str) -> None:
        """Change entries."""
        command = [
            "ldapmodify",
            "-x",
            "-H",
            f"ldap://127.0.0.1:{self.port}",
            "-D",
            ADMIN,
            "-w",
            PASSWORD,
        ]
        done = subprocess.run(command, input=ldif, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _is_ready(self) -> bool:
        with socket.socket() as asking:
            asking.settimeout(1)
            return asking.connect_ex(("127.0.0.1", self.port)) == 0


def _program(name: str) -> str:
    """Path of a program of OpenLDAP; Debian keeps the server off the path."""
    place = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    assert place, (
        f"the tests need {name}; on Debian or Ubuntu: sudo apt-get install slapd ldap-utils"
    )
    return place
