"""Cosines of samples: held against their definition in Python's own integers, against fixed numbers, and the kernel."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError, InputError
from ridgeway.common.base.files import sha256
from ridgeway.common.base.settings import FEATURE_LIMIT, CosineFeatures, WordFeatures
from ridgeway.common.encoding import encoder_sources
from ridgeway.common.encoding.cosine_features import TURN, Cosines, cosine_table, whole_roots
from ridgeway.common.encoding.encoder_files import load_encoder, save_encoder
from ridgeway.common.encoding.encoder_sources import absolute_source, encoder_for_routing, find_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder, of_tokens_alone, with_cosines, with_words
from tests.support.tiny import tiny_encoder

VALUES = st.one_of(
    st.sampled_from([0, 1, -1, FEATURE_LIMIT, -FEATURE_LIMIT]), st.integers(-FEATURE_LIMIT, FEATURE_LIMIT)
)


def by_hand(cosines: Cosines, sample: list[int]) -> list[int]:
    """The definition, in integers without a bound."""
    length = max(1, math.isqrt(sum(value * value for value in sample)))
    products = [sum(s * x for s, x in zip(row, sample, strict=True)) for row in cosines.signs.T.astype(int).tolist()]
    angles = [cosines.options.frequency * product // length for product in products]
    values = cosine_table(cosines.options.amplitude)
    return [values[(angle + phase) % TURN] for angle, phase in zip(angles, cosines.phases.tolist(), strict=True)]


@given(
    samples=st.lists(st.lists(VALUES, min_size=9, max_size=9), max_size=4),
    options=st.builds(
        CosineFeatures,
        st.integers(1, 9),
        st.one_of(st.just(1 << 16), st.integers(1, 1 << 16)),
        st.one_of(st.just(FEATURE_LIMIT), st.integers(1, FEATURE_LIMIT)),
    ),
)
def test_cosines_are_those_of_the_definition(samples: list[list[int]], options: CosineFeatures) -> None:
    """Bit for bit, a sample of zeros and the largest ones included, and whatever stands beside a sample."""
    cosines = Cosines(options, 9)
    found = cosines.of(np.array(samples, dtype=np.int16).reshape(-1, 9))
    assert found.tolist() == [by_hand(cosines, sample) for sample in samples]


@pytest.mark.parametrize("inputs", [4095, 4096, 9000])
def test_wide_samples_of_the_largest_values_are_exact(inputs: int) -> None:
    """Where a product with signs does not fit float32 any more, float64 takes it."""
    cosines = Cosines(CosineFeatures(width=3, frequency=1 << 16, amplitude=FEATURE_LIMIT), inputs)
    sample = (FEATURE_LIMIT * cosines.signs[:, 1]).astype(np.int16)  # with its own signs, the largest product
    sample[0] -= 2 * sample[0] // FEATURE_LIMIT
    assert cosines.of(sample[None]).tolist() == [by_hand(cosines, sample.tolist())]


def test_many_samples_are_taken_in_blocks() -> None:
    """How many come at once changes none."""
    samples = np.random.default_rng(1).integers(-FEATURE_LIMIT, FEATURE_LIMIT + 1, (2500, 5)).astype(np.int16)
    cosines = Cosines(CosineFeatures(width=4), 5)
    np.testing.assert_array_equal(cosines.of(samples), np.concatenate([cosines.of(each[None]) for each in samples]))


@given(root=st.integers(1, 1 << 20), off=st.integers(-2, 2))
def test_roots_are_whole_and_never_too_large(root: int, off: int) -> None:
    """Beside the squares of whole numbers, too; of 0 the root is 1, as something is divided by it."""
    square = max(0, root * root + off)
    assert whole_roots(np.array([square])).tolist() == [max(1, math.isqrt(square))]


def test_the_table_is_of_rounded_cosines() -> None:
    """By the machine's own cosine, of which no value lies near a half."""
    for amplitude in (1, 64, FEATURE_LIMIT):
        assert cosine_table(amplitude) == [round(amplitude * math.cos(math.tau * k / TURN)) for k in range(TURN)]


SIGNS_AND_PHASES = "d73b5217d0672956f2632eed0798043f489ca17fc36afd34bf6793d71147a39d"
FIRST_COSINES = [60, 51, 44, -10, -37, -2]
ALL_COSINES = "beb2bb2999f336dec4ae3a7a8a57948cd5a4a30c75a18e83bfc32c01a0ad5ad3"


def test_cosines_are_fixed_numbers() -> None:
    """What every machine must have: the signs, the phases, and the cosines of a sample."""
    cosines = Cosines(CosineFeatures(), 1088)
    assert sha256(np.packbits(cosines.signs > 0).tobytes(), cosines.phases.astype("<u2").tobytes()) == SIGNS_AND_PHASES
    sample = (np.arange(1088) * 7919 % 8193 - 4096).astype(np.int16)
    assert cosines.of(sample[None])[0, :6].tolist() == FIRST_COSINES
    assert sha256(cosines.of(sample[None]).astype("<i2").tobytes()) == ALL_COSINES


def test_products_of_cosines_approximate_a_gaussian_kernel() -> None:
    """exp(−γ²|u − v|²/2) of the directions u and v, γ being the frequency as an angle."""
    rolls, options = np.random.default_rng(3), CosineFeatures(width=4096, frequency=652, amplitude=FEATURE_LIMIT)
    near, far = rolls.normal(0, 300, (2, 400))
    samples = np.rint([near, near + far / 2, near + far, -near]).astype(np.int16)
    values = Cosines(options, 400).of(samples) / FEATURE_LIMIT
    units: NDArray[np.float64] = samples / np.linalg.norm(samples, axis=1, keepdims=True)
    apart = ((units[:, None] - units) ** 2).sum(axis=2)
    expected = np.exp(-((652 * math.tau / TURN) ** 2) * apart / 2)
    assert np.abs(2 * values @ values.T / 4096 - expected).max() < 0.06


def test_an_encoder_with_cosines_is_another_encoder(tmp_path: Path) -> None:
    """Its fingerprint and its name tell; it is saved with them, and loses them where tokens alone are asked for."""
    plain = with_words(tiny_encoder(), WordFeatures(width=4))
    made = with_cosines(plain, CosineFeatures(width=5))
    assert (made.name, made.width, made.linear_width) == ("tiny+words+cosines", 15, 10)
    others = {with_cosines(plain, each).fingerprint for each in (CosineFeatures(5, 9), CosineFeatures(5, amplitude=9))}
    assert len({plain.fingerprint, made.fingerprint, *others}) == 4
    save_encoder(made, tmp_path / "saved")
    assert load_encoder(tmp_path / "saved").fingerprint == made.fingerprint
    assert of_tokens_alone(made).fingerprint == tiny_encoder().fingerprint


def test_a_source_with_cosines_is_found_again_by_its_fingerprint(tmp_path: Path) -> None:
    """By whoever routes on this machine; from a folder that is named, if it was never met; and nothing else passes."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    source = f"dir:{tmp_path / 'encoder'}+words+cosines"
    assert absolute_source(source) == source
    found = find_encoder(source)
    assert isinstance(found, TableEncoder) and found.name == "tiny+words+cosines"
    card = {"name": found.name, "fingerprint": found.fingerprint, **found.more}
    assert encoder_for_routing(card).fingerprint == found.fingerprint
    (tmp_path / "encoder").rename(tmp_path / "moved")
    with pytest.raises(EncoderError, match=r"not on this machine.*--model"):
        encoder_for_routing(card)
    assert encoder_for_routing(card, tmp_path / "moved").fingerprint == found.fingerprint
    find_encoder(source.replace("/encoder+", "/moved+"))
    assert encoder_for_routing(card).fingerprint == found.fingerprint
    save_encoder(tiny_encoder(seed=1), tmp_path / "other")
    with pytest.raises(EncoderError, match="not the release's"):
        encoder_for_routing(card, tmp_path / "other")


def test_a_release_s_own_options_are_used_whatever_a_name_means_today(tmp_path: Path) -> None:
    """So that other defaults, some day, leave old releases as they are."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    old = with_cosines(tiny_encoder(), CosineFeatures(width=3, frequency=77))
    card = {"name": old.name, "fingerprint": old.fingerprint, **old.more}
    assert encoder_for_routing(card, tmp_path / "encoder").kernel == old.kernel


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words behind cosines, cosines of a model, and numbers beyond what sums can hold."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    with pytest.raises(EncoderError, match="comes last"):
        find_encoder(f"dir:{tmp_path / 'encoder'}+cosines+words")
    monkeypatch.setattr(encoder_sources, "load_encoder", lambda path: object())
    with pytest.raises(EncoderError, match="not a model"):
        find_encoder("dir:model+cosines")
    for wrong in ({"width": 0}, {"width": 1 << 14}, {"frequency": 0}, {"amplitude": FEATURE_LIMIT + 1}):
        with pytest.raises(InputError, match="give 1 to"):
            CosineFeatures(**wrong)
