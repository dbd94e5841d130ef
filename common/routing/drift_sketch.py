"""How unusual a text is beside the text that a router was built on: its leverage under the total, by a sketch of it.

The leverage of features x is xᵀ(A/mass + λI)⁻¹x / F, which is 1 on average over the samples that were summed. That of
a prompt is told as if it had `span` tokens, whatever its length: squares of tokens and products of different tokens are
averaged apart, so that a short prompt is no more unusual than a long one for being short.

The sketch holds for every token, and for every bucket that runs of letters fall into if the encoder knows words, its
whitened features in a few random directions. It is a function of the total, so it
stays with the operator: in a file beside the release, never in it. Knows numpy and that file. Knows nothing of text,
servers, alarms or how a sketch is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parsed
from safetensors.numpy import save as packed

from ridgeway.common.base.errors import FormatError, RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.settings import EARLIER_RUNS, WordFeatures
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.word_sketch import Spelling, WordSketch
from ridgeway.common.routing.word_table import check_spelling

SUFFIX = ".drift"
VERSION = 1
MAX_TOKENS = 1024
"""Of longer texts the beginning tells enough."""
MAX_SPELT_TOKENS = 128
"""The same where letters are looked at, which takes longer."""
MIN_TOKENS = 8
"""Shorter texts say too little to be measured."""
BEGINNING_TOKENS = 32
"""What is usual is told of whole texts and of beginnings of this length, as prompts are short."""
TRIMMED_SHARE = 0.05
"""This share is left out of a mean at either end: one odd text says nothing of the others."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SketchedWords:
    """What words add to their tokens' rows. buckets: D×r float16; words: which runs of letters fall into each."""

    buckets: NDArray[np.float16]
    words: WordSketch

    def of(self, ids: Ids) -> NDArray[np.float32]:
        """What each token of a text has of the runs of letters that end in it."""
        owners, buckets, signs = self.words.grams(ids, np.array([0, len(ids)]))
        found, order = np.zeros((len(ids), self.buckets.shape[1]), dtype=np.float32), np.argsort(owners, kind="stable")
        rows, owners = self.buckets[buckets[order]] * signs[order, None].astype(np.float32), owners[order]
        if len(firsts := np.flatnonzero(np.diff(owners, prepend=-1))):  # no product: its threads would wait for cores
            found[owners[firsts]] = np.add.reduceat(rows, firsts, axis=0)
        return found


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DriftSketch:
    """rows:  V×r float16, each token's whitened features in r random directions.

    span:  of how many tokens the leverage is told.
    router: the SHA-256 of the router's file that it belongs to.
    usual: as `usual` tells it of held-out text; NaN if that is not known.
    words: what words add, if the encoder knows them.
    """

    rows: NDArray[np.float16]
    span: int
    router: str = ""
    usual: float = math.nan
    words: SketchedWords | None = None

    def of(self, ids: Ids) -> float:
        """The leverage of a text; NaN if it has fewer than two tokens. The order of its words does not matter."""
        ids = ids[: MAX_TOKENS if self.words is None else MAX_SPELT_TOKENS]
        if (count := len(ids)) < 2:
            return math.nan
        rows = self.rows.take(ids, axis=0).astype(np.float32)
        if self.words is not None:
            rows += self.words.of(ids)
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
    if sketch.words is not None:
        words, spelling = sketch.words.words.options, sketch.words.words.spelling
        arrays |= {"buckets": sketch.words.buckets, "letters": spelling.letters, "starts": spelling.starts}
        arrays |= {"runs": np.array([words.shortest, words.longest])}
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
        words = _words(arrays, rows) if "buckets" in arrays else None
        found = DriftSketch(rows, span, arrays["router"].tobytes().hex(), float(arrays["usual"][0]), words)
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError, RidgewayError) as error:
        raise FormatError("the release's companion is damaged, so no leverage can be told") from error
    return found if found.router == router else None


def _words(arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.float16]) -> SketchedWords:
    buckets, spelling = arrays["buckets"], Spelling(arrays["letters"], arrays["starts"])
    check_spelling(spelling, len(rows))
    if buckets.dtype != np.float16 or buckets.shape[1:] != rows.shape[1:] or not np.isfinite(buckets).all():
        raise ValueError("no sketch of words")
    said = dict(zip(EARLIER_RUNS, arrays["runs"].tolist(), strict=True)) if "runs" in arrays else {}
    return SketchedWords(buckets, WordSketch(WordFeatures.of_json({"width": len(buckets), **said}), spelling))


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
