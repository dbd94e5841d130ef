"""Laws of sentence vectors: the same bits by numpy, the compiled module and torch, whatever the
batch.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.text import sentence_encoder
from ridgeway.common.text.sentence_encoder import UseEncoder
from tests.support.native import needs_native, without_native
from tests.support.seeds import few_examples

PIECES = 128_000

Texts = list[list[int]]


def texts() -> st.SearchStrategy[Texts]:
    """Ids of some texts, some of them empty; a long one is a short one over and over."""
    ids = st.lists(st.integers(0, PIECES - 1), max_size=12)
    times = st.sampled_from([1, 1, 1, 7, 60])
    return st.lists(st.builds(lambda part, count: part * count, ids, times), max_size=6)


def vectors(encoder: UseEncoder, batch: Texts) -> NDArray[np.int16]:
    return encoder.vectors(*rows(batch))


def rows(batch: Texts) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    ids = np.array([number for text in batch for number in text], dtype=np.int32)
    return ids, np.array([len(text) for text in batch], dtype=np.int64)


@needs_native
@few_examples
@given(batch=texts())
def test_the_compiled_module_gives_the_vectors_of_numpy(
    sentences: UseEncoder, batch: Texts
) -> None:
    compiled = vectors(sentences, batch)
    with without_native():
        assert (vectors(sentences, batch) == compiled).all()


@few_examples
@given(batch=texts())
def test_torch_gives_the_vectors_of_numpy(sentences: UseEncoder, batch: Texts) -> None:
    torch = pytest.importorskip("torch")
    from ridgeway.common.text.sentence_network import TorchSentences

    expected = vectors(sentences, batch)
    for device in ("cpu", *(["cuda:0"] if torch.cuda.is_available() else [])):
        made = TorchSentences(sentences.numbers, device).vectors(*rows(batch))
        assert made.dtype == np.int16
        assert (made == expected).all()


@few_examples
@given(batch=texts(), native=st.booleans(), tokens=st.sampled_from([1, 30, 4096]))
def test_a_vector_depends_on_its_text_alone(
    sentences: UseEncoder, batch: Texts, native: bool, tokens: int
) -> None:
    """Not on the texts beside it, and not on how many tokens are taken at once."""
    alone = [vectors(sentences, [text])[0] for text in batch]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_encoder, "BATCH_TOKENS", tokens)
        if not native:
            patch.setattr(sentence_encoder, "native", None)
        together = vectors(sentences, batch)
    assert together.tolist() == [vector.tolist() for vector in alone]


@needs_native
@given(wrong=st.sampled_from([-1, 128_010, 2**31 - 1]))
def test_an_id_beyond_the_table_is_refused(sentences: UseEncoder, wrong: int) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        vectors(sentences, [[5, wrong]])
