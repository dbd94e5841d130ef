"""Statistics of one domain as a file that can be carried by hand: safetensors with a version and a
digest.

Holds sums and the terms they were made under; no text, no counts of tokens, no path. A file of a
part of a corpus, which stays with its holder, also has the number of its documents and tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """Which part of a corpus some sums are over. All parts of a corpus, added, are the corpus.

    number, of:  such as 3 of 64.
    corpus:      a digest of the files and settings that were divided, equal in all parts of one
                 corpus.
    met:         how many documents, tokens and so on were met.
    skip_broken: the share of the whole corpus' records that may be passed over.
    """

    number: int
    of: int
    corpus: str
    met: Mapping[str, int]
    skip_broken: float

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InputError(
                f"there is no part {self.number} of {self.of}; parts are counted from"
                " 1, such as 3/64"
            )

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """One domain's raw sums, with everything that must agree before they may be added to others.

    holdout: the share of documents that was kept out of the sums; it may differ from file to file.
    part:    which part of a corpus they are over; None: all of it.
    """

    domain: str
    encoder_name: str
    fingerprint: str
    sampling: Sampling
    statistics: Statistics
    holdout: float = 0.0
    part: CorpusPart | None = None

    def __post_init__(self) -> None:
        check_domain_name(self.domain)
        if self.encoder_name.endswith("+cosines"):
            raise StatisticsError(
                "cosine encoders are no longer supported; prepare it again with "
                "another, such as smollm2+words"
            )
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


def load_prepared(path: Path, *, own: bool = False, parts: bool = False) -> Prepared:
    """Read a statistics file; damage of any kind, and sums that no text can have, are errors that
    name the file.

    own:   the reader has summed them itself, so the digest alone is checked.
    parts: a file of a part of a corpus is read too.
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
            part=CorpusPart(**header["part"]) if "part" in header else None,
        )
        if prepared.digest != header["digest"]:
            raise FormatError("its sums or its terms were changed after it was written")
        if prepared.part and not parts:
            raise StatisticsError(
                f"it is {prepared.part}; add up all parts with `ridgeway client add`"
            )
        # there are more parts than text
        empty = prepared.part and not triangle.any() and not cross.any()
        if not own and not empty:
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
    part = {"part": asdict(prepared.part)} if prepared.part else {}
    return part | {
        "format": _FORMAT,
        "version": _VERSION,
        "domain": prepared.domain,
        "encoder": {"name": prepared.encoder_name, "fingerprint": prepared.fingerprint},
        "sampling": prepared.sampling.to_json(),
        "holdout": prepared.holdout,
    }
