"""The public prior: made of any text, carried as a file, refused where it does not fit or was
changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderMismatch, FormatError, InputError
from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.privacy import public_prior
from ridgeway.common.privacy.noise import document_vectors
from ridgeway.common.privacy.public_prior import (
    LETTER_BUCKETS,
    MAX_ROW_SUM,
    MEAN_BITS,
    PUBLIC_TEXT,
    PublicPrior,
    Whitening,
    built_in_prior,
    letter_sums,
    make_prior,
    prior_bytes,
    prior_of_bytes,
    read_prior,
    write_prior,
)
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from ridgeway.common.text.table_encoder import TableEncoder, with_sentences, with_words
from tests.support.sentence_networks import encoder_of, random_network
from tests.support.tiny import LETTERS, tiny_encoder


@cache
def private_encoder(seed: int = 0) -> TableEncoder:
    """With a sentence network of random numbers, none of them too large."""
    plain = with_words(tiny_encoder(seed=seed), WordFeatures(LETTER_BUCKETS))
    return with_sentences(plain, encoder_of(random_network(0, 0.1)))


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        "".join(rng.choice(list(LETTERS), rng.integers(5, 60))) for _ in range(count)
    ]


@pytest.fixture(scope="module", autouse=True)
def _few_salads() -> Iterator[None]:
    """Their number is of no account here, and they take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public_prior, "SALADS", 600)
        yield


def made(public: list[str]) -> PublicPrior:
    return make_prior(private_encoder(), public)


@pytest.fixture(scope="module")
def prior() -> PublicPrior:
    return made(texts(50))


def test_public_documents_vary_alike_in_all_directions() -> None:
    """This is what the prior is for: noise of one size is then equally bad, and equally small,
    everywhere, but where text hardly varies at all.
    """
    encoder, public = private_encoder(), texts(4000)
    tokens = encoder.read(public)
    known = make_prior(encoder, public)
    sums = letter_sums(encoder, tokens)
    plain, seen = (
        np.linalg.eigvalsh(np.cov(rows.T))
        for rows in (
            sums / tokens.lengths[:, None],
            known.letters.whitened(sums, tokens.lengths).astype(float),
        )
    )
    # what varies more than half as much as the mean
    varied = plain > plain.mean() / 2
    assert varied.sum() > LETTER_BUCKETS / 4
    assert seen[-1] < 1.5 * seen[-varied.sum()]


def test_a_prior_is_as_fine_as_exact_arithmetic_allows(prior: PublicPrior) -> None:
    """Rounding to integers loses nothing that could matter, and stays within what the products
    take.
    """
    for block in prior.blocks:
        largest = np.abs(block.matrix.astype(np.int64)).sum(axis=1).max()
        assert MAX_ROW_SUM // 4 < largest < MAX_ROW_SUM


def test_text_with_too_few_directions_still_makes_a_prior() -> None:
    """Two equal sentences vary in no direction."""
    matrix = made(["a sentence", "one more"]).letters.matrix.astype(float)
    assert np.linalg.matrix_rank(matrix) == LETTER_BUCKETS


def test_a_prior_has_a_whitening_of_letters_and_of_sentences(
    prior: PublicPrior,
) -> None:
    """Sentences need no text: theirs is the same whatever the text is."""
    assert prior.sentences
    widths = [block.width for block in prior.blocks]
    assert widths == [LETTER_BUCKETS, SENTENCE_WIDTH]
    other = made(texts(9, seed=1))
    assert other.sentences
    assert np.array_equal(other.sentences.matrix, prior.sentences.matrix)
    assert not np.array_equal(other.letters.matrix, prior.letters.matrix)
    assert other.fingerprint != prior.fingerprint


def test_many_letters_in_one_token_make_a_prior() -> None:
    """As documents they are cut off, and so they are here."""
    public = ["<end>" * 5000 + "a", "b" * 5000, *texts(9)]
    prior = made(public)
    limit = FEATURE_LIMIT << MEAN_BITS
    assert np.abs(prior.letters.mean).max() <= limit


def test_a_prior_survives_its_file(prior: PublicPrior, tmp_path: Path) -> None:
    """What is read is what was written, by fingerprint."""
    write_prior(prior, tmp_path / "prior")
    assert read_prior(tmp_path / "prior").fingerprint == prior.fingerprint


def test_a_changed_prior_is_refused(prior: PublicPrior, tmp_path: Path) -> None:
    """Every flipped byte shows; so does a missing file, and anything that is not a prior."""
    content = prior_bytes(prior)
    header = int.from_bytes(content[:8], "little") + 8
    places = *range(0, header, 7), *range(header, len(content), len(content) // 50)
    for position in places:
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


def test_a_prior_of_another_encoder_is_refused(prior: PublicPrior) -> None:
    """It would look at documents from a wrong place."""
    prior.must_fit(private_encoder())
    other = private_encoder(seed=1)
    with pytest.raises(EncoderMismatch, match="prior make"):
        prior.must_fit(other)
    with pytest.raises(EncoderMismatch, match="prior make"):
        document_vectors(prior, other.read(["a"]), other)


def test_no_text_makes_no_prior() -> None:
    """An empty folder is said to be one."""
    for nothing in ([], ["", "<end>"]):
        with pytest.raises(InputError, match="no text"):
            made(nothing)


def test_every_machine_has_text_for_a_prior(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It comes with the package, and is the same everywhere; text that was changed is told of."""
    lines = list(public_prior._public_text())
    assert len(lines) > 100 and all(map(str.strip, lines))
    assert built_in_prior(private_encoder()).fingerprint == made(lines).fingerprint
    copy = shutil.copytree(PUBLIC_TEXT, tmp_path / "text")
    with (copy / "law.txt").open("a", encoding="utf-8") as file:
        file.write("One more?\n")
    monkeypatch.setattr(public_prior, "PUBLIC_TEXT", copy)
    with pytest.raises(FormatError, match="install Ridgeway again"):
        built_in_prior(private_encoder())
