"""The encoder: quantisation, fingerprint, folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import EncoderError, FormatError
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.text.encoder_files import load_encoder, save_encoder
from ridgeway.common.text.table_encoder import TableEncoder, quantise
from tests.support.tiny import tiny_definition, tiny_encoder


@given(
    values=st.lists(
        st.floats(-1e6, 1e6, allow_subnormal=False), min_size=6, max_size=60
    ).filter(any)
)
def test_quantised_embeddings_are_within_half_a_step(values: list[float]) -> None:
    """The integer table times its scale is the embedding to half a unit, and never beyond the
    public bound.
    """
    embeddings = np.array(values[: len(values) // 3 * 3]).reshape(-1, 3)
    if not embeddings.any():
        return
    table, scale = quantise(embeddings)
    assert np.abs(table).max() == FEATURE_LIMIT
    assert np.abs(table * scale - embeddings).max() <= scale * (0.5 + 1e-9)


@pytest.mark.parametrize(
    "broken", [np.zeros((3, 2)), np.full((3, 2), np.nan), np.full((3, 2), np.inf)]
)
def test_a_table_without_finite_numbers_is_refused(broken: np.ndarray) -> None:
    """A damaged table is an error, not an encoder of zeros."""
    with pytest.raises(EncoderError, match="all zero or not finite"):
        quantise(broken)


def test_the_fingerprint_depends_on_everything_that_changes_a_sum(
    encoder: TableEncoder,
) -> None:
    """Another table, scale or tokenizer is another encoder; another name is not."""
    table = encoder.table.copy()
    table[3, 2] += 1 if table[3, 2] < FEATURE_LIMIT else -1
    definition = encoder.definition.replace(b'"unk_token":"<unk>"', b'"unk_token":"a"')
    assert definition != encoder.definition
    others = [
        replace(encoder, table=table),
        replace(encoder, scale=np.nextafter(encoder.scale, 1)),
        replace(encoder, definition=definition),
        replace(encoder, table=np.ascontiguousarray(encoder.table[:, ::-1])),
    ]
    assert len({encoder.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert replace(encoder, name="other").fingerprint == encoder.fingerprint


def test_a_saved_encoder_is_the_same_encoder(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """Saving and loading changes nothing."""
    save_encoder(encoder, tmp_path / "saved")
    loaded = load_encoder(tmp_path / "saved")
    assert loaded.fingerprint == encoder.fingerprint
    assert loaded.name == encoder.name
    assert np.array_equal(loaded.table, encoder.table)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "encoder.json",
        "table.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize(
    "name", ["encoder.json", "table.safetensors", "tokenizer.json"]
)
def test_a_changed_file_of_an_encoder_is_noticed(
    encoder: TableEncoder, tmp_path: Path, name: str
) -> None:
    """A flipped bit in any of the three files is an error."""
    save_encoder(encoder, tmp_path / "saved")
    path = tmp_path / "saved" / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises((FormatError, EncoderError)):
        load_encoder(tmp_path / "saved")


@pytest.mark.parametrize("name", ["cosines", "kind"])
def test_a_saved_encoder_of_an_unknown_kind_is_refused(
    encoder: TableEncoder, tmp_path: Path, name: str
) -> None:
    """Before its fingerprint is looked at."""
    save_encoder(encoder, tmp_path)
    card = json.loads((tmp_path / "encoder.json").read_bytes())
    (tmp_path / "encoder.json").write_text(json.dumps(card | {name: "contextual"}))
    words = f"encoders with '{name}' are not supported; make it again with"
    with pytest.raises(EncoderError, match=words):
        load_encoder(tmp_path)


def test_an_encoder_is_not_saved_over_something_else(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """A folder in use is left as it is."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(EncoderError, match="already contains other files"):
        save_encoder(encoder, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_tokenizer_needs_a_row_for_every_id(encoder: TableEncoder) -> None:
    """A table that is too short for its tokenizer is of another model."""
    with pytest.raises(EncoderError, match="use both of the same model"):
        replace(encoder, table=encoder.table[:-1].copy())


def test_padding_rows_of_a_table_do_no_harm(encoder: TableEncoder) -> None:
    """Many models pad their tables: more rows than ids is fine."""
    rows = np.vstack([encoder.table, encoder.table[:5]])
    padded = replace(encoder, table=rows)
    assert padded.rows == encoder.rows + 5


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_a_positive_number(encoder: TableEncoder, scale: float) -> None:
    """Zero, negative and infinite scales are refused."""
    with pytest.raises(EncoderError, match="scale"):
        replace(encoder, scale=scale)


def test_limits_in_a_tokenizer_definition_are_lifted() -> None:
    """The tiny definition ships with truncation after four tokens; no text is cut by it."""
    assert len(tiny_encoder().tokenizer.encode("a" * 1000)) == 1000
    assert b'"truncation":null' in tiny_definition()


def test_special_tokens_are_never_counted(encoder: TableEncoder) -> None:
    """What stands for a special token in a text is dropped, alone, among others and in batches."""
    plain = encoder.tokenizer.encode("ab")
    assert np.array_equal(encoder.tokenizer.encode("a<end>b<end>"), plain)
    ids, lengths = encoder.tokenizer.encode_many(["<end>", "a<end>b", "", "ab"])
    assert lengths.tolist() == [0, 2, 0, 2]
    assert np.array_equal(ids, np.concatenate([plain, plain]))
    assert [piece for _, piece in encoder.tokenizer.pieces("a<end>b")] == ["a", "b"]


def test_a_text_that_utf8_cannot_hold_is_still_encoded(encoder: TableEncoder) -> None:
    """A lone surrogate becomes a question mark instead of an error."""
    assert len(encoder.tokenizer.encode("a\ud800b")) == 3
    assert encoder.tokenizer.encode_many(["a\ud800b", "ab"])[1].tolist() == [3, 2]
    assert len(encoder.tokenizer.pieces("a\ud800b")) == 3


def test_an_encoder_does_not_print_its_table(encoder: TableEncoder) -> None:
    """The repr names it and no more."""
    assert repr(encoder) == f"<TableEncoder tiny 42×6 {encoder.fingerprint[:12]}>"


def test_a_text_is_cut_into_words_with_their_tokens(encoder: TableEncoder) -> None:
    """Letters and digits that stand side by side are one piece; all else, and wide scripts, stand
    token by token.
    """
    text = "ab1, c<end>d é日本"
    words = encoder.tokenizer.words(text)
    assert [word for word, _ in words] == ["ab1", *", cd é日本"]
    numbers = [number for _, ids in words for number in ids]
    assert numbers == encoder.tokenizer.encode(text).tolist()


def test_words_of_real_tokens_are_whole_and_characters_of_several_tokens_are_shown_once(
    smollm2: TableEncoder,
) -> None:
    """A blank goes with the word behind it, as its token has it."""
    expected = ["The", " copyrighted", " Ωμέγα", " 🎉", "!"]
    text = "".join(expected)
    words = smollm2.tokenizer.words(text)
    assert [word for word, _ in words] == expected
    sizes = [len(ids) for _, ids in words]
    assert max(sizes) > 1
    assert sum(sizes) == len(smollm2.tokenizer.encode(text))
