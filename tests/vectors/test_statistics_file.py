"""The statistics file, fixed: what version 1 looks like to the byte, and what becomes of a damaged
one.
"""

from __future__ import annotations

import json
import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.base.settings import Sampling
from ridgeway.common.statistics import (
    Integers,
    Prepared,
    Statistics,
    load_prepared,
    save_prepared,
    single_domain,
    to_bytes,
)
from tests.support.making import trapped_pickle
from tests.support.tiny import tiny_encoder

FINGERPRINT = "336450fdfb0362097ed438b7cabb94238af6f2e9b7f669fe10f5d483bdbdd036"
DIGEST = "5bf2e7ca1a0eff3b41ca81a5e56b3b105ba4247783fea20102d92015ac76e3ef"
FILE = b64decode(
    "GAIAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJyaWRnZXdheSI6IntcbiBcImRpZ2VzdFwiOiBcIjViZjJlN2NhMWEwZWZmM2I0MWNhODFhNWU1NmIz"
    "YjEwNWJhNDI0Nzc4M2ZlYTIwMTAyZDkyMDE1YWM3NmUzZWZcIixcbiBcImRvbWFpblwiOiBcImxhd1wiLFxuIFwiZW5jb2RlclwiOiB7XG4gIFwi"
    "ZmluZ2VycHJpbnRcIjogXCIzMzY0NTBmZGZiMDM2MjA5N2VkNDM4YjdjYWJiOTQyMzhhZjZmMmU5YjdmNjY5ZmUxMGY1ZDQ4M2JkYmRkMDM2XCIs"
    "XG4gIFwibmFtZVwiOiBcInRpbnlcIlxuIH0sXG4gXCJmb3JtYXRcIjogXCJyaWRnZXdheS5zdGF0aXN0aWNzXCIsXG4gXCJob2xkb3V0XCI6IDAu"
    "MCxcbiBcInNhbXBsaW5nXCI6IHtcbiAgXCJtYXhfdG9rZW5zXCI6IDAsXG4gIFwid2luZG93XCI6IDY0XG4gfSxcbiBcInZlcnNpb25cIjogMVxu"
    "fVxuIn0sImNyb3NzIjp7ImR0eXBlIjoiSTY0Iiwic2hhcGUiOlszLDFdLCJkYXRhX29mZnNldHMiOlswLDI0XX0sImdyYW0iOnsiZHR5cGUiOiJJ"
    "NjQiLCJzaGFwZSI6WzZdLCJkYXRhX29mZnNldHMiOlsyNCw3Ml19ff7/////////BvD///////8DAAAAAAAAAAoAAAAAAAAA9v/////////+////"
    "/////xQAAAEAAAAABvD///////8DAAAAAAAAAA=="
)


def fixed() -> Prepared:
    """Three samples of two features, (1, 2), (−3, 4) and (0, −4096), and the constant one."""
    samples = np.array([[1, 2, 1], [-3, 4, 1], [0, -4096, 1]])
    return Prepared(
        "law", "tiny", FINGERPRINT, Sampling(64, 0), single_domain(samples.T @ samples)
    )


def terms(**changes: Any) -> dict[str, Any]:
    """The header of the fixed file, with some of it changed."""
    return {
        "format": "ridgeway.statistics",
        "version": 1,
        "domain": "law",
        "encoder": {"name": "tiny", "fingerprint": FINGERPRINT},
        "sampling": {"window": 64, "max_tokens": 0},
        "holdout": 0.0,
    } | changes


def sealed(header: dict[str, Any], triangle: Integers, cross: Integers) -> bytes:
    """A file whose digest is right, whatever it says."""
    digest = sha256(canonical_json(header), triangle.tobytes(), cross.tobytes())
    return written({**header, "digest": digest}, {"gram": triangle, "cross": cross})


def written(header: Any, arrays: Mapping[str, Any]) -> bytes:
    return save(dict(arrays), metadata={"ridgeway": json.dumps(header)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "law.stats"


def refuses(path: Path, content: bytes, reason: str = "") -> None:
    """The content is refused by a FormatError that names the file and the reason."""
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"^{re.escape(str(path))} .*{reason}"):
        load_prepared(path)


# Fixed


def test_the_tiny_encoder_has_its_fingerprint() -> None:
    """sha256 over tokenizer, table, scale and options: no version of a library changes it."""
    assert tiny_encoder().fingerprint == FINGERPRINT


def test_the_digest_is_fixed() -> None:
    """It covers the terms in canonical JSON, the triangle and cross, as little-endian 64-bit
    integers.
    """
    assert fixed().digest == DIGEST
    triangle = np.array([10, -10, -2, 20 + 4096**2, 6 - 4096, 3], dtype="<i8")
    cross = np.array([[-2], [6 - 4096], [3]], dtype="<i8")
    assert (
        sha256(canonical_json(terms()), triangle.tobytes(), cross.tobytes()) == DIGEST
    )


@pytest.mark.parametrize(
    "other",
    [
        {"domain": "laws"},
        {"encoder_name": "tinier"},
        {"fingerprint": "0" * 64},
        {"sampling": Sampling(63, 0)},
        {"sampling": Sampling(64, 1)},
        {"holdout": 0.05},
        {
            "statistics": single_domain(
                np.array([[10, -10, -2], [-10, 50, 6], [-2, 6, 3]])
            )
        },
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_changes_changes_the_digest(other: dict[str, Any]) -> None:
    """Two statistics are the same only if their terms and their sums are."""
    assert replace(fixed(), **other).digest != DIGEST


def test_the_bytes_of_version_1_are_fixed() -> None:
    """Equal statistics are equal files, today and with the next release of Ridgeway."""
    assert to_bytes(fixed()) == FILE, b64encode(to_bytes(fixed())).decode()


def test_a_file_of_version_1_can_be_read(path: Path) -> None:
    """Files that holders wrote stay readable."""
    path.write_bytes(FILE)
    assert to_bytes(load_prepared(path)) == FILE


def test_what_is_saved_is_what_is_loaded(path: Path) -> None:
    """A file carried by hand loses nothing, whatever the order of the arrays in memory; its owner
    alone can read it.
    """
    one = fixed()
    sums = one.statistics
    turned = Statistics(np.asfortranarray(sums.gram), np.asfortranarray(sums.cross))
    save_prepared(replace(one, statistics=turned), path)
    assert path.read_bytes() == FILE
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600
    assert repr(one) == "<Prepared law <Statistics features=3 domains=1>>"


# Damaged


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_a_flipped_byte_is_refused_or_means_the_same(path: Path, mask: int) -> None:
    """No byte of the file can change and give other sums or other terms; the refusal names the
    file.
    """
    refused = 0
    for position in range(len(FILE)):
        flipped = bytearray(FILE)
        flipped[position] ^= mask
        path.write_bytes(flipped)
        try:
            loaded = load_prepared(path)
        except FormatError as error:
            assert str(error).startswith(str(path)), (position, error)
            refused += 1
        else:
            assert loaded.digest == DIGEST, position
            assert loaded.statistics.equals(fixed().statistics), position
    assert refused >= len(FILE) - 40, "only white space and spare bytes may change"


@pytest.mark.slow
def test_a_truncated_file_is_refused(path: Path) -> None:
    """At whatever byte the copy stopped."""
    for length in range(len(FILE)):
        refuses(path, FILE[:length])


@pytest.mark.parametrize("more", [b"\0", b"more", bytes(8)])
def test_a_file_with_more_at_its_end_is_refused(path: Path, more: bytes) -> None:
    """Nothing rides along."""
    refuses(path, FILE + more)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        *(
            (terms(version=version), f"version {version}; .* reads version 1")
            for version in (0, 2, "1", None)
        ),
        (terms(format="ridgeway.parts"), "it is ridgeway.parts, not statistics"),
        (terms(domain="../law"), "invalid domain name"),
        (terms(domain=7), "not a statistics file"),
        (terms(sampling={"window": 0, "max_tokens": 0}), "window is 0"),
        (terms(sampling={"window": 64}), "changed after it was written"),
        (
            terms(sampling={"window": 64, "max_tokens": 0, "stride": 1}),
            "a stride of 1 is shorter than the window of 64",
        ),
        (
            terms(sampling={"window": 64, "max_tokens": 0, "documents": -1}),
            "`documents` is no longer supported",
        ),
        (
            terms(sampling={"window": 64, "max_tokens": 0, "steps": 1}),
            "sampling needs `window`",
        ),
        (terms(sampling=[64, 0]), "not a statistics file"),
        (terms(encoder="tiny"), "not a statistics file"),
        (terms(encoder={"name": "tiny"}), "not a statistics file"),
        (
            terms(encoder={"name": "tiny+cosines", "fingerprint": FINGERPRINT}),
            "name or fingerprint is invalid",
        ),
    ],
)
def test_terms_that_cannot_be_are_refused(
    path: Path, header: dict[str, Any], reason: str
) -> None:
    """A right digest does not make wrong terms right."""
    triangle, cross = fixed().statistics.packed()
    refuses(path, sealed(header, triangle, cross), reason)


SUMS: dict[str, tuple[Any, Any, str]] = {
    "asymmetry is impossible, but squares can be negative": (
        [-1, 0, 0, 1, 0, 1],
        [[0], [0], [1]],
        "gram has a negative diagonal",
    ),
    "two domains": (
        [4, 0, 0, 9, 0, 3],
        [[0, 0], [0, 0], [1, 2]],
        "has one domain, not 2",
    ),
    "another size": ([4, 0, 0, 9, 0], [[0], [0], [3]], "does not fit"),
    "one feature": ([3], [[3]], "do not match"),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_no_text_can_have_are_refused_under_a_right_digest(
    path: Path, name: str
) -> None:
    """A digest is no proof: it says that the file is whole, not that it is true. What else no text
    can have is in tests/laws/test_statistics_laws.py.
    """
    triangle, cross, reason = SUMS[name]
    refuses(path, sealed(terms(), np.array(triangle), np.array(cross)), reason)


TRIANGLE, CROSS = fixed().statistics.packed()
BOTH = {"gram": TRIANGLE, "cross": CROSS}
NO_HEADERS: tuple[Any, ...] = (
    [],
    "text",
    7,
    None,
    {},
    {"format": "ridgeway.statistics"},
)
NUMBERS = ("float64", "uint64", "int32")
SEALED = terms(digest=DIGEST)
MISMADE: dict[str, tuple[bytes, str]] = {
    **{
        f"header {header!r}": (written(header, BOTH), "not a statistics file")
        for header in NO_HEADERS
    },
    **{
        f"sums of {kind}": (
            written(SEALED, {name: sums.astype(kind) for name, sums in BOTH.items()}),
            "64-bit integers",
        )
        for kind in NUMBERS
    },
    "a header nested without end": (
        save(BOTH, metadata={"ridgeway": "[" * 100_000}),
        "",
    ),
    "the digest of other sums": (
        written(SEALED, BOTH | {"gram": TRIANGLE + 1}),
        "changed after",
    ),
    "no header": (save(BOTH), "not a statistics file"),
    "no columns": (written(SEALED, {"gram": TRIANGLE}), "not a statistics file"),
    "no products": (written(SEALED, {"cross": CROSS}), "not a statistics file"),
}


@pytest.mark.parametrize("name", MISMADE)
def test_safetensors_of_another_make_are_refused(path: Path, name: str) -> None:
    """JSON of another shape, other sums than the digest's, other numbers, a missing part: damage,
    not a crash.
    """
    refuses(path, *MISMADE[name])


def test_a_pickle_is_never_loaded(path: Path) -> None:
    """A file that would run code when unpickled is refused, and its code does not run."""
    trap = path.parent / "trap"
    refuses(path, trapped_pickle(trap), "not a statistics file")
    assert not trap.exists()
    pickle.loads(path.read_bytes())
    assert trap.exists(), "the trap works"


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    """A missing file is a wrong word, not damage; a folder is no file."""
    for missing in (path, path.parent):
        with pytest.raises(InputError, match=re.escape(str(missing))):
            load_prepared(missing)


# What may be written


@pytest.mark.parametrize("name", ["law", "Law-2.1_b", "право", "x" * 64, "7"])
def test_a_domain_may_have_a_plain_name(name: str) -> None:
    """Letters of any language, digits, dots, dashes and underscores."""
    assert replace(fixed(), domain=name).domain == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a b", "a/b", ".hidden", "-x", "law\n", "a\0b", "..", "ä̈:"]
)
def test_a_domain_may_not_have_a_name_that_misleads(name: str) -> None:
    """Names become file names and keys: no paths, no white space, nothing hidden."""
    with pytest.raises(InputError, match="invalid domain name"):
        replace(fixed(), domain=name)
