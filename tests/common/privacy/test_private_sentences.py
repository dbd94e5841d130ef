"""Private sums of an encoder that reads sentences: bounded documents, the prior, the two routers of
one total.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    LETTERS_SHARE,
    SENTENCES_SHARE,
    VECTOR_LENGTH,
    PrivacyMode,
    bounded_sums,
    count_unit,
    document_vectors,
    unit_rows,
)
from ridgeway.common.privacy.noisy_solve import (
    noise_variance,
    solve_noisy,
    solve_private,
)
from ridgeway.common.privacy.public_prior import (
    LETTER_BUCKETS,
    Integers,
    PublicPrior,
    make_prior,
    prior_bytes,
    prior_of_bytes,
    private_width,
)
from ridgeway.common.routing.sentence_table import (
    NOISY_MARGIN,
    Cascade,
    compile_router,
    margin_for,
)
from ridgeway.common.statistics import Statistics
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    of_table_rows,
    of_tokens_alone,
    with_sentences,
    with_words,
)
from tests.support.tiny import tiny_encoder

DOMAINS = ("weather", "money")
TEXTS = {
    "weather": (
        "will it rain today",
        "is it sunny outside",
        "how cold is it now",
        "does it snow in winter",
    ),
    "money": (
        "transfer cash to my bank",
        "what is my account balance",
        "pay the invoice",
        "how much did it cost",
    ),
}
HELD_OUT = {
    "weather": ("is a storm coming", "how warm will it be tomorrow"),
    "money": ("send money to my brother", "what do i owe the bank"),
}
WIDTH = 6
LETTERS_PART = LETTERS_SHARE**2 / (LETTERS_SHARE**2 + SENTENCES_SHARE**2)
"""Of a vector's square."""
ALL_BUCKETS = 2 * LETTER_BUCKETS
"""Those of the encoder: two of them are one here."""


@pytest.fixture(scope="module")
def encoder(sentences: UseEncoder) -> TableEncoder:
    plain = with_words(tiny_encoder(WIDTH), WordFeatures(ALL_BUCKETS))
    return with_sentences(plain, sentences)


@pytest.fixture(scope="module")
def prior(encoder: TableEncoder) -> PublicPrior:
    return make_prior(encoder, list(chain(*TEXTS.values())))


def rows_of(
    texts: tuple[str, ...], encoder: TableEncoder, prior: PublicPrior
) -> Integers:
    return document_vectors(prior, encoder.read(texts), encoder)


def test_a_document_is_bounded_whatever_stands_beside_it(
    encoder: TableEncoder, prior: PublicPrior
) -> None:
    """Empty ones are zeros, long ones are read in pieces, and each row is as long as the bound, or
    just below.
    """
    texts = ("", "rain", "is it sunny outside " * 200, "7" * 5000)
    together = rows_of(texts, encoder, prior)
    assert together.shape == (4, private_width(encoder))
    assert private_width(encoder) == prior.width == LETTER_BUCKETS + SENTENCE_WIDTH
    assert not together[0].any()
    squares = np.square(together[1:]).sum(axis=1)
    assert (squares <= VECTOR_LENGTH**2).all() and (
        squares > 0.99 * VECTOR_LENGTH**2
    ).all()
    for text, row in zip(texts, together, strict=True):
        assert (rows_of((text,), encoder, prior)[0] == row).all()
    bounded_sums("full", together)


def test_both_parts_count(encoder: TableEncoder, prior: PublicPrior) -> None:
    """A vector's square is shared out as it is said."""
    rows = rows_of(TEXTS["money"], encoder, prior).astype(float)
    of_sentences = np.square(rows[:, LETTER_BUCKETS:]).sum(axis=1) / np.square(
        rows
    ).sum(axis=1)
    assert np.allclose(of_sentences, 1 - LETTERS_PART, atol=1e-3)


def test_a_prior_of_sentences_is_read_as_it_was_written(prior: PublicPrior) -> None:
    """And one number that was changed is noticed."""
    content = bytearray(prior_bytes(prior))
    assert prior_of_bytes(bytes(content)).fingerprint == prior.fingerprint
    for index in (len(content) // 2, len(content) - 2):
        changed = content.copy()
        changed[index] ^= 1
        with pytest.raises(FormatError):
            prior_of_bytes(bytes(changed))


def test_an_encoder_that_private_rounds_do_not_know_is_refused(
    encoder: TableEncoder, sentences: UseEncoder
) -> None:
    """They need letters, in a multiple of their buckets, and sentences; the sentence says which
    encoder has both.
    """
    plain = of_tokens_alone(encoder)
    odd = WordFeatures(ALL_BUCKETS - 1)
    for other in (
        plain,
        with_words(plain, WordFeatures()),
        with_sentences(plain, sentences),
        with_sentences(with_words(plain, odd), sentences),
    ):
        with pytest.raises(InputError, match=r"use --encoder use\+words\+sentence"):
            make_prior(other, ["rain"])
        with pytest.raises(InputError, match="private rounds need runs of letters"):
            private_width(other)


@pytest.mark.parametrize("mode", ["columns", "full"])
def test_one_total_gives_both_routers(
    encoder: TableEncoder, prior: PublicPrior, mode: PrivacyMode
) -> None:
    """With next to no noise, text that the table cannot tell apart is routed by its sentences."""
    copies = 40_000
    sums = [
        bounded_sums(mode, rows_of(TEXTS[name], encoder, prior)) for name in DOMAINS
    ]
    cross = np.stack([part.column for part in sums], axis=1) * copies
    gram = np.zeros((private_width(encoder) + 1,) * 2, np.int64)
    if mode == "full":
        gram[:-1, :-1] = sum(part.products for part in sums) * copies
    total = Statistics(gram, cross)
    privacy = Privacy(mode=mode, epsilon=8.0, prior=prior.fingerprint)
    weights = solve_private(total, privacy, DOMAINS, prior, encoder)
    assert weights.shape == (encoder.width + 1, 2 * len(DOMAINS))
    of_tokens, of_letters, of_sentences, random = np.split(
        weights[:-1],
        np.cumsum([WIDTH, ALL_BUCKETS, SENTENCE_WIDTH]),
    )
    # tokens and random features are not summed
    assert not of_tokens.any() and not random.any()
    assert of_letters[:, :2].any() and of_sentences[:, :2].any()
    # two of the encoder's buckets are one
    assert (of_letters[::2] == of_letters[1::2]).all()
    # the table knows nothing of sentences
    outside = np.delete(weights[:, 2:], of_table_rows(encoder), axis=0)
    assert not outside.any() and of_letters[:, 2:].any()
    router = compile_router(encoder, weights, margin_for(private=True))
    assert isinstance(router, Cascade) and router.margin == NOISY_MARGIN
    # a row that is that of every token
    assert len(router.table.logits) == 1
    for index, name in enumerate(DOMAINS):
        said = router.sentences.token_sums(encoder.read(HELD_OUT[name]))
        assert (said.argmax(axis=1) == index).all()


def test_the_table_is_solved_as_if_nothing_but_letters_were_summed(
    encoder: TableEncoder, prior: PublicPrior
) -> None:
    """It is the router of letters alone, but for rounding."""
    parts = [rows_of(TEXTS[name], encoder, prior) for name in DOMAINS]
    cross = np.stack([bounded_sums("columns", rows).column for rows in parts], axis=1)
    cross *= 1_000_000
    documents = len(TEXTS["money"]) * 1_000_000
    assert (cross[-1] == documents * count_unit("columns")).all()
    total = Statistics(np.zeros((len(cross),) * 2, np.int64), cross)
    privacy = Privacy(mode="columns", epsilon=8.0, prior=prior.fingerprint)
    weights = solve_private(total, privacy, DOMAINS, prior, encoder)
    of_letters = [
        bounded_sums("columns", unit_rows(rows[:, :LETTER_BUCKETS])).column
        for rows in parts
    ]
    columns = np.stack(of_letters, axis=1)[:-1] * 1_000_000
    variance = noise_variance(privacy, DOMAINS) / LETTERS_PART
    alone = replace(prior, sentences=None)
    expected = solve_noisy(columns, cross[-1], variance, alone, encoder.scale)
    table = weights[of_table_rows(encoder), 2:]
    largest = np.abs(expected[:-1]).max()
    assert np.abs(table[WIDTH:-1:2] - expected[:-1]).max() < 1e-2 * largest
    assert np.allclose(table[-1], expected[-1], rtol=1e-3)
