"""How unusual a text is beside the text that a router was built on: its leverage under the total.

The leverage of features x is xᵀ(A/mass + λI)⁻¹x / F, which is 1 on average over the samples that were summed. That of
a prompt is told as if it had `span` tokens, whatever its length: squares of tokens and products of different tokens are
averaged apart, so that a short prompt is no more unusual than a long one for being short.

What is kept is a sketch: for every token its whitened features in a few random directions. It is a function of the
total, so it stays with the operator: in a file beside the release, never in it. Knows numpy and that file. Knows
nothing of text, servers or alarms.
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

from common.encoder import Encoder
from common.errors import FormatError, UnsolvableTotal
from common.files import sha256, write_whole
from common.settings import Ridge, Sampling
from common.statistics import Statistics
from common.tokenizer import Ids
from coordinator.solve import Matrix, equation

SUFFIX = ".drift"
VERSION = 1
DIRECTIONS = 64
"""So many give a leverage to about a sixth of itself in any one direction, and text goes in many."""
RIDGE = Ridge(1e-3)
"""The same for every release, so that the λ that was chosen for routing does not change what is unusual."""
MOST_TOKENS = 1024
"""Of longer texts the beginning tells enough."""
FEWEST_TOKENS = 8
"""Shorter texts say too little to be measured."""
TRIM = 0.05
"""So much is left out of a mean at either end: one odd text says nothing of the others."""
SHORT = 32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Leverage:
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
        count = min(len(ids), MOST_TOKENS)
        if count < 2:
            return math.nan
        rows = self.rows.take(ids[:count], axis=0).astype(np.float32)
        summed = np.add.reduce(rows, axis=0)
        squares = float(np.vdot(rows, rows))
        products = float(np.dot(summed, summed)) - squares
        return (squares / count + (self.span - 1) * products / (count * (count - 1))) / self.span

    def __repr__(self) -> str:
        return f"<Leverage {len(self.rows)} tokens>"


def make(total: Statistics, encoder: Encoder, sampling: Sampling, directions: int = DIRECTIONS) -> Leverage:
    """Sketch a total.

    The directions are drawn from the total itself: the same total gives the same bytes, and whoever does not know the
    total does not know them either.
    """
    whitening = _whitening(total, encoder.scale, directions)
    whitening[:-1] *= encoder.scale
    narrow = whitening.astype(np.float32)
    rows = np.empty((encoder.rows, narrow.shape[1]), dtype=np.float16)
    for start in range(0, encoder.rows, 8192):
        block = slice(start, start + 8192)
        rows[block] = encoder.table[block].astype(np.float32) @ narrow[:-1] + narrow[-1]
    return Leverage(rows, max(sampling.window, sampling.stride))


def _whitening(total: Statistics, scale: float, directions: int) -> Matrix:
    """F×r: features times this have a sum of squares whose expectation is their leverage."""
    from scipy.linalg import cholesky, solve_triangular

    posed = equation(total, scale, RIDGE)
    features = len(posed.gram)
    count = min(directions, features)
    try:
        factor = cholesky(posed.gram / total.mass, lower=True)
    except np.linalg.LinAlgError as error:
        raise UnsolvableTotal("the total is not positive definite, so no leverage can be told under it") from error
    seed = int(sha256(np.ascontiguousarray(total.gram).data), 16)
    drawn = np.random.default_rng(seed).standard_normal((features, count))
    whitening: Matrix = solve_triangular(factor, np.linalg.qr(drawn)[0], lower=True, trans="T") / math.sqrt(count)
    return whitening


def usual(leverage: Leverage, texts: Iterable[Sequence[Ids]]) -> float:
    """The mean leverage of held-out texts, or of their beginnings, of the domain where it is largest.

    texts: those of each domain, as ids. NaN if none is long enough to be measured.
    """
    long = [[ids for ids in domain if len(ids) >= FEWEST_TOKENS] for domain in texts]
    cuts = (SHORT, MOST_TOKENS)
    means = [trimmed_mean([leverage.of(ids[:cut]) for ids in domain]) for domain in long for cut in cuts]
    return max((mean for mean in means if not math.isnan(mean)), default=math.nan)


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without a twentieth at either end; NaN of nothing."""
    cut = int(TRIM * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept) if kept else math.nan


def companion(folder: Path) -> Path:
    """Where the leverage of a release is kept: beside its folder."""
    folder = folder.resolve()
    return folder.with_name(folder.name + SUFFIX)


def save(folder: Path, leverage: Leverage) -> None:
    """Write the companion of the release in a folder, for the operator's eyes alone."""
    arrays = {
        "version": np.array([VERSION]),
        "rows": np.ascontiguousarray(leverage.rows),
        "span": np.array([leverage.span]),
        "router": np.frombuffer(bytes.fromhex(leverage.router), dtype=np.uint8),
        "usual": np.array([leverage.usual]),
    }
    write_whole(companion(folder), packed(arrays), private=True)


def load(folder: Path, router: str) -> Leverage | None:
    """The companion of the release in a folder; None if it has none, or that of another router. Raises FormatError.

    router: the SHA-256 of the release's router, as its manifest says.
    """
    try:
        content = companion(folder).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = _read(content)
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise FormatError("the release's companion is damaged, so no leverage can be told") from error
    return found if found.router == router else None


def _read(content: bytes) -> Leverage:
    arrays = parsed(content)
    if int(arrays["version"][0]) != VERSION:
        raise ValueError("another version")
    rows, span = arrays["rows"], int(arrays["span"][0])
    if rows.dtype != np.float16 or rows.ndim != 2 or 0 in rows.shape or span < 1 or not np.isfinite(rows).all():
        raise ValueError("no sketch")
    return Leverage(rows, span, arrays["router"].tobytes().hex(), float(arrays["usual"][0]))


def hand_on(folder: Path, router: str, to: Path, new_router: str) -> None:
    """Give a release that was made of another, without a new total, the other's companion."""
    found = load_if_whole(folder, router)
    if found is not None:
        save(to, replace(found, router=new_router))


def load_if_whole(folder: Path, router: str) -> Leverage | None:
    """As `load`, but a damaged companion is as good as none."""
    try:
        return load(folder, router)
    except FormatError:
        return None
