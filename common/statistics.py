"""The two sums a domain holder shares, and the operations they need: `+`, `-`, weighting, packing,
checking.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ridgeway.common.base.errors import (
    BoundExceeded,
    BrokenIdentity,
    FormatError,
    InputError,
    ShapeMismatch,
    StatisticsError,
)
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling, check_domain_name

Integers = NDArray[np.int64]

MAX_SQUARE = FEATURE_LIMIT**2
SUM_BOUND = 1 << 62


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Statistics:
    """Exact sums over a holder's samples: enough to solve for a router, no text.

    gram:  F×F int64, the sum of φφᵀ over integer features φ (the last one is the constant 1).
    cross: F×C int64, the sum of φyᵀ, where y is one-hot over the C domains.

    Law: the statistics of two corpora, added, are the statistics of their union.
    """

    gram: Integers
    cross: Integers

    def __post_init__(self) -> None:
        features = self.gram.shape[0] if self.gram.ndim == 2 else 0
        fits = (
            self.gram.shape == (features, features)
            and self.cross.ndim == 2
            and self.cross.shape[0] == features
        )
        if not fits or features < 2 or self.cross.shape[1] < 1:
            raise ShapeMismatch(
                f"sums of shapes {self.gram.shape} and {self.cross.shape} do not match"
            )
        if self.gram.dtype != np.int64 or self.cross.dtype != np.int64:
            raise ShapeMismatch(
                f"sums are 64-bit integers, not {self.gram.dtype} and"
                f" {self.cross.dtype}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Features (with the constant one) and domains."""
        return self.gram.shape[0], self.cross.shape[1]

    @property
    def mass(self) -> int:
        """How many samples were summed."""
        return int(self.gram[-1, -1])

    def __add__(self, other: Statistics) -> Statistics:
        self._must_match(other)
        check_bound(self.mass + other.mass)
        return Statistics(self.gram + other.gram, self.cross + other.cross)

    def __sub__(self, other: Statistics) -> Statistics:
        self._must_match(other)
        return Statistics(self.gram - other.gram, self.cross - other.cross)

    def _must_match(self, other: Statistics) -> None:
        if self.shape != other.shape:
            raise ShapeMismatch(
                f"cannot add statistics of shape {other.shape} to {self.shape}"
            )

    def equals(self, other: Statistics) -> bool:
        """Bit for bit."""
        return np.array_equal(self.gram, other.gram) and np.array_equal(
            self.cross, other.cross
        )

    def weighted(self, mass: int) -> Statistics:
        """The same statistics, normalised to a public sample mass and rounded to integers."""
        if self.mass <= 0:
            raise BrokenIdentity(
                "statistics without samples cannot be weighted; the corpus is empty"
            )
        check_bound(max(mass, self.mass))
        if mass * self.mass >= SUM_BOUND:
            raise BoundExceeded(
                f"{self.mass:_} samples cannot be weighted to {mass:_} in 64 bits; use"
                " a smaller mass"
            )
        return Statistics(
            _scaled(self.gram, mass, self.mass), _scaled(self.cross, mass, self.mass)
        )

    def placed(self, position: int, domains: int) -> Statistics:
        """One domain's statistics as those of a cohort of several: its column stands at
        `position`.
        """
        if self.shape[1] != 1 or not 0 <= position < domains:
            raise ShapeMismatch(
                f"cannot place {self.shape[1]} columns at position {position} of"
                f" {domains} domains"
            )
        cross = np.zeros((self.shape[0], domains), dtype=np.int64)
        cross[:, position] = self.cross[:, 0]
        return Statistics(self.gram, cross)

    def packed(self) -> tuple[Integers, Integers]:
        """What travels: the upper triangle of gram, row by row, and cross."""
        return self.gram[upper_triangle(self.shape[0])], self.cross

    def as_vector(self) -> Integers:
        """What is masked: the same numbers in one row."""
        triangle, cross = self.packed()
        return np.concatenate((triangle, cross.ravel()))

    def check(self, rounded: int = 0, *, summed_here: bool = False) -> None:
        """Raise BrokenIdentity unless some text could have produced these sums.

        rounded: how many weighted statistics were added; each may be off by half a unit.
        summed_here: whether the reader has summed them itself, so that entries and pairs are looked
                     at, and not all directions.
        """
        check_bound(self.mass)
        _check_entries(self)
        _check_pairs(self.gram, rounded)
        if not summed_here:
            _check_positive(self.gram, rounded)

    def check_noisy(self) -> None:
        """The same for sums under noise, of which less can be said: raises if they do not belong
        together.
        """
        if not np.array_equal(self.gram, self.gram.T) or not np.array_equal(
            self.gram[:, -1], self.cross.sum(axis=1)
        ):
            raise BrokenIdentity(
                "the domains' columns do not add up to the sum of all documents"
            )
        if max(_largest(self.gram), _largest(self.cross)) >= SUM_BOUND:
            raise BrokenIdentity("a sum is larger than documents and noise allow")

    def __repr__(self) -> str:
        features, domains = self.shape
        return f"<Statistics features={features} domains={domains}>"


def unpacked(triangle: Integers, cross: Integers) -> Statistics:
    """The inverse of `packed`."""
    features = cross.shape[0] if cross.ndim == 2 else 0
    if triangle.shape != (triangle_size(features),):
        raise ShapeMismatch(
            f"a triangle of {triangle.size} numbers does not fit {features} features"
        )
    gram = np.empty((features, features), dtype=triangle.dtype)
    upper = upper_triangle(features)
    gram[upper] = triangle
    gram.T[upper] = triangle
    return Statistics(gram, cross)


def from_vector(vector: Integers, features: int, domains: int) -> Statistics:
    """The inverse of `as_vector`."""
    if vector.shape != (vector_size(features, domains),):
        raise ShapeMismatch(
            f"expected sums of {features} features and {domains} domains, not "
            f"{vector.size} numbers"
        )
    size = triangle_size(features)
    return unpacked(vector[:size], vector[size:].reshape(features, domains))


def of_columns(cross: Integers) -> Statistics:
    """Sums of which the columns alone are known: gram has what follows from them, and zeros."""
    gram = np.zeros((len(cross), len(cross)), dtype=np.int64)
    gram[-1] = gram[:, -1] = cross.sum(axis=1)
    return Statistics(gram, cross)


def vector_size(features: int, domains: int) -> int:
    return triangle_size(features) + features * domains


@lru_cache(maxsize=2)
def upper_triangle(features: int) -> NDArray[np.bool_]:
    """Where the upper triangle lies; read row by row, its entries are in the order that they travel
    in.
    """
    mask: NDArray[np.bool_] = ~np.tri(features, k=-1, dtype=bool)
    mask.flags.writeable = False
    return mask


def triangle_size(features: int) -> int:
    return features * (features + 1) // 2


def single_domain(gram: Integers) -> Statistics:
    """Statistics of one domain: its cross column is what the constant feature already holds."""
    return Statistics(gram, gram[:, -1:].copy())


def check_bound(mass: int) -> None:
    """Refuse sums that could overflow: mass · 2²⁴, the mass being over all domains, must stay below
    2⁶².
    """
    if mass * MAX_SQUARE >= SUM_BOUND:
        raise BoundExceeded(
            f"{mass:_} samples could overflow 64 bits; at most "
            f"{SUM_BOUND // MAX_SQUARE - 1:_} are supported"
        )


def _largest(sums: Integers) -> int:
    return max(abs(int(sums.min())), abs(int(sums.max())))


def _scaled(sums: Integers, mass: int, total: int) -> Integers:
    # mostly, and one division takes half as long as two
    if _largest(sums) * mass + total < SUM_BOUND:
        once: Integers = (sums * mass + total // 2) // total
        return once
    quotient, rest = np.divmod(sums, total)
    scaled: Integers = quotient * mass + (rest * mass + total // 2) // total
    return scaled


def _check_entries(statistics: Statistics) -> None:
    gram = statistics.gram
    cross = statistics.cross
    mass = statistics.mass
    if mass <= 0:
        raise BrokenIdentity(
            f"the sample mass is {mass}; the statistics contain no text"
        )
    if not np.array_equal(gram, gram.T):
        raise BrokenIdentity(
            "gram is not symmetric; the file is corrupt or was not made by Ridgeway"
        )
    if gram.diagonal().min() < 0:
        raise BrokenIdentity(
            "gram has a negative diagonal; the file is corrupt or was not made by "
            "Ridgeway"
        )
    if not np.array_equal(gram[:, -1], cross.sum(axis=1)):
        raise BrokenIdentity(
            "the domains' columns do not add up to the sum of all samples; the file "
            "is corrupt"
        )
    limits = np.full(gram.shape[0], FEATURE_LIMIT)
    limits[-1] = 1
    # compared before they are multiplied, so that nothing can wrap around
    shares = np.clip(cross[-1], 0, mass)
    largest = np.outer(limits, shares)
    is_small = ((cross <= largest) & (cross >= -largest)).all()
    if (
        not is_small
        or not np.array_equal(shares, cross[-1])
        or gram.diagonal().max() > MAX_SQUARE * mass
    ):
        raise BrokenIdentity(
            "a sum is larger than its samples allow; the file is corrupt or was not "
            "made by Ridgeway"
        )


def _check_pairs(gram: Integers, rounded: int) -> None:
    """|A_ij|² ≤ A_ii·A_jj, with half a unit of slack for each rounding."""
    slack = rounded / 2
    root = np.sqrt(gram.diagonal().astype(np.float64) + slack)
    excess = (
        np.abs(gram).astype(np.float64)
        - slack
        - root[:, None] * root[None, :] * (1 + 1e-9)
    )
    if excess.max() > 1e-6:
        raise BrokenIdentity(
            "gram breaks the Cauchy-Schwarz inequality; the file is corrupt or a mask "
            "did not cancel"
        )


def _check_positive(gram: Integers, rounded: int) -> None:
    """No direction has a negative sum of squares, up to what rounding can explain."""
    matrix = gram.astype(np.float64)
    diagonal = matrix.diagonal() + rounded * len(matrix) / 2
    used = np.flatnonzero(diagonal > 0)
    root = np.sqrt(diagonal[used])
    scaled = matrix[np.ix_(used, used)] / root[:, None] / root[None, :]
    np.fill_diagonal(scaled, 1 + 1e-9)
    try:
        with one_blas_thread():
            np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        raise BrokenIdentity(
            "gram is not positive semi-definite; the file is corrupt or a mask did "
            "not cancel"
        ) from None


# Statistics of one domain as a file that can be carried by hand: safetensors with a version and a
# digest.
#
# Holds sums and the terms they were made under; no text, no counts of tokens, no path.


_FORMAT = "ridgeway.statistics"
_VERSION = 1
ENCODER_NAME = re.compile(
    r"([\w][\w.-]{0,95}|hf:[\w.-]{1,96}(/[\w.-]{1,96})?)(\+words)?(\+sentence(:[\w.-]{1,96})?)?"
)
FINGERPRINT = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """One domain's raw sums, with everything that must agree before they may be added to others.

    holdout: the share of documents that was kept out of the sums; it may differ from file to file.
    """

    domain: str
    encoder_name: str
    fingerprint: str
    sampling: Sampling
    statistics: Statistics
    holdout: float = 0.0

    def __post_init__(self) -> None:
        check_domain_name(self.domain)
        if not ENCODER_NAME.fullmatch(self.encoder_name) or not FINGERPRINT.fullmatch(
            self.fingerprint
        ):
            raise StatisticsError("the encoder's name or fingerprint is invalid")
        if self.statistics.shape[1] != 1:
            raise StatisticsError(
                f"a statistics file has one domain, not {self.statistics.shape[1]}"
            )

    @cached_property
    def digest(self) -> str:
        """Over the sums and the terms they were made under: what a file is checked against."""
        return sha256(canonical_json(_terms(self)), *self._sums())

    @cached_property
    def content(self) -> str:
        """Over the domain and the sums alone: equal for the same sums under another name of the
        encoder.
        """
        return sha256(self.domain.encode(), *self._sums())

    def _sums(self) -> list[memoryview]:
        return [
            np.ascontiguousarray(sums, dtype="<i8").data
            for sums in self.statistics.packed()
        ]

    def __repr__(self) -> str:
        return f"<Prepared {self.domain} {self.statistics!r}>"


def save_prepared(prepared: Prepared, path: Path) -> None:
    write_whole(path, to_bytes(prepared), private=True)


def to_bytes(prepared: Prepared) -> bytes:
    triangle, cross = prepared.statistics.packed()
    header = canonical_json({**_terms(prepared), "digest": prepared.digest}).decode()
    return save({"gram": triangle, "cross": cross}, metadata={"ridgeway": header})


def load_prepared(path: Path, *, summed_here: bool = False) -> Prepared:
    """Read a statistics file; damage of any kind, and sums that no text can have, are errors that
    name the file.

    summed_here: whether the reader has summed them itself, so that the digest alone is checked.
    """
    if not path.is_file():
        raise InputError(f"there is no statistics file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["ridgeway"])
            triangle = file.get_tensor("gram")
            cross = file.get_tensor("cross")
        if header["format"] != _FORMAT:
            raise FormatError(f"it is {header['format']}, not statistics")
        if header["version"] != _VERSION:
            raise FormatError(
                f"it has version {header['version']}; this Ridgeway reads version "
                f"{_VERSION}"
            )
        prepared = Prepared(
            domain=header["domain"],
            encoder_name=header["encoder"]["name"],
            fingerprint=header["encoder"]["fingerprint"],
            sampling=Sampling.of_json(header["sampling"]),
            statistics=unpacked(triangle, cross),
            holdout=float(header["holdout"]),
        )
        if prepared.digest != header["digest"]:
            raise FormatError("its sums or its terms were changed after it was written")
        if not summed_here:
            prepared.statistics.check()
    except FormatError as error:
        raise FormatError(
            f"{path} is unusable: {error}; ask its holder to prepare it again"
        ) from error
    except (StatisticsError, InputError) as error:
        raise FormatError(f"{path} is unusable: {error}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} is not a statistics file, or is corrupt ({error}); prepare it "
            "again"
        ) from error
    return prepared


def _terms(prepared: Prepared) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "domain": prepared.domain,
        "encoder": {"name": prepared.encoder_name, "fingerprint": prepared.fingerprint},
        "sampling": prepared.sampling.to_json(),
        "holdout": prepared.holdout,
    }
