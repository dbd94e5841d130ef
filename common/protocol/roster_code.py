"""The code by which holders compare the rosters that they were shown, by telephone for example.

Whoever makes rosters may try many until two have one code, and show one to each of two holders. 120
bits put that at 2⁶⁰ tries, and each try is a scrypt with 32 MiB of memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ridgeway.common.base.files import canonical_json
from ridgeway.common.protocol.invitation import RosterMember, in_order

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no I, L, O and U, which are heard or read as others."""
CODE_BYTES = 15
LETTERS_PER_GROUP = 4
SCRYPT_ROUNDS = 1 << 15
SCRYPT_BLOCK = 8
"""128 times both is the memory of one try in bytes."""
_HEARD_AS = str.maketrans("OIL", "011", " -")


def roster_code(members: Iterable[RosterMember]) -> str:
    """24 letters in groups of four. Law: it depends on names, domains and keys, in no order."""
    content = canonical_json(
        [[member.name, member.domain, member.key] for member in in_order(members)]
    )
    digest = hashlib.scrypt(
        content,
        salt=b"ridgeway roster 1",
        n=SCRYPT_ROUNDS,
        r=SCRYPT_BLOCK,
        p=1,
        maxmem=256 * SCRYPT_ROUNDS * SCRYPT_BLOCK,
        dklen=CODE_BYTES,
    )
    number = int.from_bytes(digest)
    letters = "".join(
        ALPHABET[number >> shift & 31] for shift in range(8 * CODE_BYTES - 5, -1, -5)
    )
    return "-".join(
        letters[start : start + LETTERS_PER_GROUP]
        for start in range(0, len(letters), LETTERS_PER_GROUP)
    )


def is_same_code(one: str, other: str) -> bool:
    """Whether two codes are the same, as people write them."""
    return _plain(one) == _plain(other)


def _plain(code: str) -> str:
    return code.upper().translate(_HEARD_AS)
