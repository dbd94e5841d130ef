"""The certificate that the service shows, and its private key.

Knows files and OpenSSL. A pair that was renewed is taken while the service runs.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from common.errors import InputError
from common.files import stamp_if_there

log = logging.getLogger("ridgeway.serve")


class Certificate:
    """A pair of files, checked when this is made; `context` is what connections are made with."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._pair = (certificate, key)
        self._stamp = self._stamps()
        self.context = _context(certificate, key)

    def watch(self) -> None:
        """Take the pair as it is now, if it has changed and is good."""
        stamp = self._stamps()
        if stamp == self._stamp or None in stamp:
            return
        self._stamp = stamp
        try:
            _context(*self._pair)
            self.context.load_cert_chain(*self._pair, password=_no_password)
        except OSError:
            self._stamp = []
            log.error("the new certificate cannot be used now; it is tried again, and the old one stays until then")
        except (InputError, ValueError):
            log.error("the new certificate does not fit its key, or cannot be read; the old one stays")
        else:
            log.warning("the new certificate is in use")

    def _stamps(self) -> list[object]:
        return [stamp_if_there(path) for path in self._pair]


def find_certificate(certificate: Path | None, key: Path | None) -> Certificate | None:
    """The certificate of --tls-cert and --tls-key: both or none."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--tls-cert and --tls-key go together; give both, or neither")
    return Certificate(certificate, key)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(_reason(certificate, key, error)) from None
    return context


def _no_password() -> str:
    raise ValueError("encrypted")  # else OpenSSL would ask at the terminal


def _reason(certificate: Path, key: Path, error: Exception) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"the key {key} does not belong to the certificate {certificate}; give the pair that was made together"
    if str(error) == "encrypted":
        return f"the key {key} is locked by a password; give one that is not, readable by the service alone"
    return f"{certificate} and {key} are not a certificate and its private key in PEM"
