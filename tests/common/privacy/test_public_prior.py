"""The public prior: made of any text, carried as a file, refused where it does not fit or was
changed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderMismatch, FormatError, InputError
from ridgeway.common.privacy import public_prior
from ridgeway.common.privacy.built_in_text import (
    TextFolders,
    built_in_text,
    this_machine,
)
from ridgeway.common.privacy.noise import document_vectors
from ridgeway.common.privacy.public_prior import (
    MAX_ROW_SUM,
    Whitening,
    built_in_prior,
    make_prior,
    prior_bytes,
    prior_of_bytes,
    read_prior,
    write_prior,
)
from tests.support.tiny import LETTERS, tiny_encoder


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        "".join(rng.choice(list(LETTERS), rng.integers(5, 60))) for _ in range(count)
    ]


def test_public_documents_vary_alike_in_all_directions() -> None:
    """This is what the prior is for: noise of one size is then equally bad, and equally small,
    everywhere.
    """
    encoder, public = tiny_encoder(), texts(4000)
    prior = make_prior(encoder, [public])
    vectors = document_vectors(
        prior, *encoder.tokenizer.encode_many(public), encoder.table
    ).astype(float)
    spread = np.linalg.eigvalsh(np.cov(vectors.T))
    assert spread[-1] < 1.5 * spread[0]


def test_a_prior_is_as_fine_as_exact_arithmetic_allows() -> None:
    """Rounding to integers loses nothing that could matter, and stays within what the products
    take.
    """
    whitening = make_prior(tiny_encoder(), [texts(50)]).tokens.matrix
    assert (
        MAX_ROW_SUM // 4
        < np.abs(whitening.astype(np.int64)).sum(axis=1).max()
        < MAX_ROW_SUM
    )


def test_text_with_too_few_directions_still_makes_a_prior() -> None:
    """Two equal sentences vary in no direction: how tokens vary stands in for them."""
    prior = make_prior(tiny_encoder(), [["one sentence", "one sentence"]])
    assert np.linalg.matrix_rank(prior.tokens.matrix.astype(float)) == prior.width


def test_a_prior_survives_its_file(tmp_path: Path) -> None:
    """What is read is what was written, by fingerprint."""
    prior = make_prior(tiny_encoder(), [texts(50)])
    write_prior(prior, tmp_path / "prior")
    assert read_prior(tmp_path / "prior").fingerprint == prior.fingerprint


def test_a_changed_prior_is_refused(tmp_path: Path) -> None:
    """Every flipped byte shows; so does a missing file, and anything that is not a prior."""
    content = prior_bytes(make_prior(tiny_encoder(), [texts(50)]))
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 4
        with pytest.raises(FormatError):
            prior_of_bytes(bytes(flipped))
    for other in (b"", b"text", content[:-1], content + b"x"):
        with pytest.raises(FormatError):
            prior_of_bytes(other)
    (tmp_path / "prior").write_bytes(b"text")
    with pytest.raises(FormatError, match="prior"):
        read_prior(tmp_path / "prior")
    with pytest.raises(InputError, match="prior make"):
        read_prior(tmp_path / "none")


@pytest.mark.parametrize(
    ("mean", "whitening", "bits"),
    [
        (np.zeros(2, np.int64), np.eye(3, dtype=np.int32), 0),
        (np.zeros(0, np.int64), np.zeros((0, 0), np.int32), 0),
        (np.zeros(3, np.int64), np.eye(3, dtype=np.int64), 0),
        (np.full(3, 1 << 21), np.eye(3, dtype=np.int32), 0),
        (np.zeros(3, np.int64), np.eye(3, dtype=np.int32), -1),
        (np.zeros(2, np.int64), np.full((2, 2), (1 << 31) - 1, np.int32), 0),
    ],
)
def test_numbers_that_would_not_stay_exact_are_no_prior(
    mean: public_prior.Integers,
    whitening: NDArray[np.int32],
    bits: int,
) -> None:
    """Whoever sends a prior cannot make a holder's arithmetic round."""
    with pytest.raises(FormatError):
        Whitening(mean, whitening, bits)


def test_a_prior_of_another_encoder_is_refused() -> None:
    """It would look at documents from a wrong place."""
    prior = make_prior(tiny_encoder(), [texts(50)])
    prior.must_fit(tiny_encoder())
    with pytest.raises(EncoderMismatch, match="prior make"):
        prior.must_fit(tiny_encoder(seed=1))


def test_no_text_makes_no_prior() -> None:
    """An empty folder is said to be one."""
    with pytest.raises(InputError, match="no text"):
        make_prior(tiny_encoder(), [[], [""]])


def test_every_machine_has_text_for_a_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python alone brings enough; a kind of text that is missing is left out."""
    monkeypatch.setattr(
        "ridgeway.common.privacy.built_in_text.MAX_KIND_CHARACTERS", 20_000
    )
    here = this_machine()
    bare = TextFolders(here.library, Path("nowhere"), (), Path("nowhere"))
    assert {"reference", "sources"} <= set(built_in_text(bare))
    assert built_in_prior(tiny_encoder()).width == 6
