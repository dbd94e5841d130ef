"""Statistics of one domain as a file that can be carried by hand: safetensors with a version and a
digest.

Holds sums and the terms they were made under; no text, no counts of tokens, no path.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ridgeway.common.base.errors import FormatError, InputError, StatisticsError
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.base.settings import Sampling, check_domain_name
from ridgeway.common.statistics.sums import Statistics, unpacked

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
