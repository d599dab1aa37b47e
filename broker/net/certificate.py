"""Certificates as the rest of the broker reads them: who a client says it is, and until when our own are good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from broker.auth.attempt import Certificate

_Rdn = Sequence[tuple[str, str]]

# RFC 4514, section 3; other attributes keep the name that OpenSSL has for them.
_SHORT: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ALTERNATIVES: Final = {"DNS": "dns", "IP Address": "ip", "email": "email", "URI": "uri"}
_ESCAPED: Final = str.maketrans(
    {character: f"\\{character}" for character in ',+"\\<>;'} | {"\0": "\\00"}
)


def certificate_of(shown: Mapping[str, Any]) -> Certificate:
    """A client's certificate, from the result of ``ssl.SSLSocket.getpeercert`` for a verified one."""
    names: dict[str, list[str]] = {}
    for kind, value in shown.get("subjectAltName", ()):
        if (ours := _ALTERNATIVES.get(kind)) is not None:
            names.setdefault(ours, []).append(value)
    subject: Sequence[_Rdn] = shown.get("subject", ())
    return Certificate(
        subject_text(subject),
        next(
            (value for rdn in reversed(subject) for name, value in rdn if name == "commonName"), ""
        ),
        {kind: tuple(values) for kind, values in names.items()},
    )


def subject_text(subject: Sequence[_Rdn]) -> str:
    """A distinguished name as text, most specific part first: ``CN=dev-7,OU=berlin,O=acme`` (RFC 4514)."""
    return ",".join("+".join(_parts(rdn)) for rdn in reversed(subject))


def _parts(rdn: _Rdn) -> Iterable[str]:
    for name, value in rdn:
        text = value.translate(_ESCAPED)
        if text.startswith((" ", "#")):
            text = f"\\{text}"
        if text.endswith(" ") and len(value) > 1:
            text = f"{text[:-1]}\\ "
        yield f"{_SHORT.get(name, name)}={text}"
