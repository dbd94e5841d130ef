"""The operator's own certificate authority, and the certificate under which holders reach the
coordinator.

Private keys are readable by their owner only, and replaced only by renewal.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ridgeway.common.base.errors import CertificateError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.identity import private_pem, write_key

CA_DAYS = 3650
SERVER_DAYS = 730
WARNING_DAYS = 60
"""So long before its end a certificate is spoken of."""
CURVE = ec.SECP384R1()
AUTHORITY_NAME = "Ridgeway coordinator authority"
_SERVER = "Ridgeway coordinator"
FILES = {"server": "server.crt", "authority": "ca.crt"}
KEY_USAGES = (
    "digital_signature content_commitment key_encipherment data_encipherment"
    " key_agreement key_cert_sign crl_sign encipher_only decipher_only"
).split()
ALWAYS = ("localhost", "127.0.0.1")
"""The names under which the coordinator's own processes reach each other."""

_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


def create_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Make the authority and a first server certificate for these names and addresses. Nothing is
    overwritten.
    """
    _names(hosts)  # a wrong one is refused before anything is written
    for name in ("ca.crt", "ca.key", "server.crt", "server.key"):
        if (folder / name).exists():
            raise CertificateError(
                f"{folder / name} already exists; keys and certificates are never"
                " overwritten"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_key(folder / "ca.key", private_pem(ec.generate_private_key(CURVE)))
    renew_authority(folder)
    renew_server_certificate(folder, hosts)


def renew_server_certificate(folder: Path, hosts: Sequence[str]) -> None:
    """Replace the server's key and certificate, key first; holders keep their ca.crt. Holds from a
    restart on.
    """
    authority = _read_certificate(folder / "ca.crt")
    signer = _read_key(folder / "ca.key")
    if authority.public_key() != signer.public_key():
        raise CertificateError(
            f"ca.key and ca.crt in {folder} do not match; restore both from one backup"
        )
    key = ec.generate_private_key(CURVE)
    builder = (
        _builder(_SERVER, key.public_key(), signer, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(_usage("digital_signature"), critical=True)
    )
    write_whole(folder / "server.key", private_pem(key), private=True)
    _sign(builder, signer, folder / "server.crt")


def renew_authority(folder: Path, *, new_key: bool = False) -> None:
    """Replace ca.crt by one that ends later. Under the same key, what the old one vouches for holds
    under both.

    new_key: give the authority another key as well; the server's certificate must be renewed after
             this.
    """
    path = folder / "ca.key"
    if new_key:
        write_whole(path, private_pem(ec.generate_private_key(CURVE)), private=True)
    key = _read_key(path)
    builder = (
        _builder(AUTHORITY_NAME, key.public_key(), key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    _sign(builder, key, folder / "ca.crt")


def certificate_ends(folder: Path) -> dict[str, datetime]:
    """When the server's certificate and that of the authority end."""
    return {
        name: _read_certificate(folder / file).not_valid_after_utc
        for name, file in FILES.items()
    }


def ending_certificates(folder: Path, now: datetime) -> list[str]:
    """A sentence for each certificate that has ended or is about to."""
    words = []
    for name, end in certificate_ends(folder).items():
        days = (end - now) // timedelta(days=1)
        if days > WARNING_DAYS:
            continue
        when = f"expires in {days} days, on" if days > 0 else "expires within a day, on"
        if end <= now:
            when = "expired on"
        words.append(
            f"the certificate of the {name} {when} {end:%Y-%m-%d};"
            f" {_remedy(folder, name)}"
        )
    return words


def check_certificates(folder: Path, address: str, now: datetime) -> None:
    """Raise unless both certificates hold now, and the server's names the host of this address."""
    for name, file in FILES.items():
        certificate = _read_certificate(folder / file)
        begin = certificate.not_valid_before_utc
        end = certificate.not_valid_after_utc
        if end <= now:
            raise CertificateError(
                f"the certificate of the {name} expired on {end:%Y-%m-%d}, so holders"
                f" cannot connect; {_remedy(folder, name)}"
            )
        if begin > now:
            raise CertificateError(
                f"the certificate of the {name} is valid from {begin:%Y-%m-%d}, but"
                f" this machine's clock says {now:%Y-%m-%d}; set the clock or renew"
                f" the certificate: {_remedy(folder, name)}"
            )
    host = address.rpartition(":")[0].lower()
    extensions = _read_certificate(folder / "server.crt").extensions
    named = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if _name(host) not in named:
        raise CertificateError(
            f"the server's certificate does not cover {host} (`address` in"
            " coordinator.toml), so holders cannot connect;"
            f" {_remedy(folder, 'server')}"
        )


def _remedy(folder: Path, name: str) -> str:
    option = " --authority" if name == "authority" else ""
    return f"run: ridgeway coordinator renew {folder.parent}{option}"


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """The names of a certificate, each once, localhost always among them."""
    wanted = (host.strip().lower() for host in (*hosts, *ALWAYS))
    return [_name(host) for host in dict.fromkeys(wanted)]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise CertificateError(
            f"{host!r} is not a host name or IP address; use the name that holders"
            " connect to"
        )
    return x509.DNSName(host)


def _builder(
    name: str,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    """What a certificate of the authority, or of the server, has in any case."""
    now = datetime.now(UTC)
    signing = signer.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(_common_name(AUTHORITY_NAME))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing), critical=False
        )
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in purposes for name in KEY_USAGES})


def _sign(
    builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey, path: Path
) -> None:
    certificate = builder.sign(signer, hashes.SHA384())
    write_whole(path, certificate.public_bytes(serialization.Encoding.PEM))


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise CertificateError(
            f"certificate {path} not found; set up the coordinator's folder first"
        ) from None
    except ValueError as error:
        raise CertificateError(f"{path} is not a certificate in PEM form") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise CertificateError(
            f"key {path} not found; renew the certificate on the machine that has it"
        ) from None
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{path} is not a private key in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(
            f"{path} is not a key of this authority's type; restore it from a backup"
        )
    return key
