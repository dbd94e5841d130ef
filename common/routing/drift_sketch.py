"""How unusual a text is beside the text that a router was built on: its leverage under the total, by a sketch of it.

The leverage of features x is xᵀ(A/mass + λI)⁻¹x / F, which is 1 on average over the samples that were summed. That of
a prompt is told as if it had `span` tokens, whatever its length: squares of tokens and products of different tokens are
averaged apart, so that a short prompt is no more unusual than a long one for being short.

The sketch holds for every token its whitened features in a few random directions. It is a function of the total, so it
stays with the operator: in a file beside the release, never in it. Knows numpy and that file. Knows nothing of text,
servers, alarms or how a sketch is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parsed
from safetensors.numpy import save as packed

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import write_whole
from ridgeway.common.encoding.tokenizer import Ids

SUFFIX = ".drift"
VERSION = 1
MAX_TOKENS = 1024
"""Of longer texts the beginning tells enough."""
MIN_TOKENS = 8
"""Shorter texts say too little to be measured."""
BEGINNING_TOKENS = 32
"""What is usual is told of whole texts and of beginnings of this length, as prompts are short."""
TRIMMED_SHARE = 0.05
"""This share is left out of a mean at either end: one odd text says nothing of the others."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DriftSketch:
    """rows:  V×r float16, each token's whitened features in r random directions.

    span:  of how many tokens the leverage is told.
    router: the SHA-256 of the router's file that it belongs to.
    usual: as `usual` tells it of held-out text; NaN if that is not known.
    """

    rows: NDArray[np.float16]
    span: int
    router: str = ""
    usual: float = math.nan

    def of(self, ids: Ids) -> float:
        """The leverage of a text; NaN if it has fewer than two tokens. The order of the tokens does not matter."""
        count = min(len(ids), MAX_TOKENS)
        if count < 2:
            return math.nan
        rows = self.rows.take(ids[:count], axis=0).astype(np.float32)
        summed = np.add.reduce(rows, axis=0)
        squares = float(np.vdot(rows, rows))
        products = float(np.dot(summed, summed)) - squares
        return (squares / count + (self.span - 1) * products / (count * (count - 1))) / self.span

    def __repr__(self) -> str:
        return f"<DriftSketch {len(self.rows)} tokens>"


def usual(sketch: DriftSketch, texts: Iterable[Sequence[Ids]]) -> float:
    """The mean leverage of held-out texts, or of their beginnings, of the domain where it is largest.

    texts: those of each domain, as ids. NaN if none is long enough to be measured.
    """
    long = [[ids for ids in domain if len(ids) >= MIN_TOKENS] for domain in texts]
    cuts = (BEGINNING_TOKENS, MAX_TOKENS)
    means = [trimmed_mean([sketch.of(ids[:cut]) for ids in domain]) for domain in long for cut in cuts]
    return max((mean for mean in means if not math.isnan(mean)), default=math.nan)


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without a twentieth at either end; NaN of nothing."""
    cut = int(TRIMMED_SHARE * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept) if kept else math.nan


def companion(folder: Path) -> Path:
    """Where the sketch of a release is kept: beside its folder."""
    folder = folder.resolve()
    return folder.with_name(folder.name + SUFFIX)


def save(folder: Path, sketch: DriftSketch) -> None:
    """Write the companion of the release in a folder, for the operator's eyes alone."""
    arrays = {
        "version": np.array([VERSION]),
        "rows": np.ascontiguousarray(sketch.rows),
        "span": np.array([sketch.span]),
        "router": np.frombuffer(bytes.fromhex(sketch.router), dtype=np.uint8),
        "usual": np.array([sketch.usual]),
    }
    write_whole(companion(folder), packed(arrays), private=True)


def load(folder: Path, router: str) -> DriftSketch | None:
    """The companion of the release in a folder; None if it has none, or that of another router. Raises FormatError.

    router: the SHA-256 of the release's router, as its manifest says.
    """
    try:
        content = companion(folder).read_bytes()
    except FileNotFoundError:
        return None
    try:
        arrays = parsed(content)
        rows, span = arrays["rows"], int(arrays["span"][0])
        if rows.dtype != np.float16 or rows.ndim != 2 or 0 in rows.shape or span < 1 or not np.isfinite(rows).all():
            raise ValueError("no sketch")
        if int(arrays["version"][0]) != VERSION:
            raise ValueError("another version")
        found = DriftSketch(rows, span, arrays["router"].tobytes().hex(), float(arrays["usual"][0]))
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise FormatError("the release's companion is damaged, so no leverage can be told") from error
    return found if found.router == router else None


def copy_companion(folder: Path, router: str, to: Path, new_router: str) -> None:
    """Give a release that was made of another, without a new total, the other's companion."""
    found = load_if_whole(folder, router)
    if found is not None:
        save(to, replace(found, router=new_router))


def load_if_whole(folder: Path, router: str) -> DriftSketch | None:
    """As `load`, but a damaged companion is as good as none."""
    try:
        return load(folder, router)
    except FormatError:
        return None
