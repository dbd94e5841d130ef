"""Whom the address of a client stands for, where clients are counted.

Knows the form of addresses.
"""

from __future__ import annotations

import ipaddress


def client_network(address: str) -> str:
    """Whom a client's address stands for: itself, or in IPv6 the network of 64 bits that one household is given."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
