"""Texts as token ids: what an expert is trained on, what its learning rate is chosen on, what it is tested with.

Knows tokenizers and settings. Knows nothing of models.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import EncoderError
from common.tokenizer import Ids, Tokenizer, shared_tokenizer
from simulations.lab.experts.recipe import Recipe
from simulations.lab.setting import Setting, split

ENDS = ("<|endoftext|>", "</s>", "<eos>", "<end>")
"""What language models are taught to end a document with: the first of these that a tokenizer has is taken."""

FEW = 64
"""Texts that are tokenised at once."""

Documents = tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """The tokens of every domain. end: the id between documents, and before the first token of each."""

    end: int
    fit: Mapping[str, Documents]
    held: Mapping[str, Documents]
    test: Mapping[str, Documents]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.fit)


def job(setting: Setting, definition: bytes, recipe: Recipe, seed: int) -> Job:
    """Training documents in random order, as many as are needed; held-out ones are never trained on."""
    known, parts = shared_tokenizer(definition), split(setting)
    return Job(
        end_of(definition),
        {name: _enough(known, _shuffled(texts, seed), recipe.tokens) for name, texts in parts.fit.items()},
        {name: _enough(known, _shuffled(texts, seed), recipe.held) for name, texts in parts.held.items()},
        {name: _documents(known, texts) for name, texts in setting.test.items()},
    )


def end_of(definition: bytes) -> int:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(definition.decode())
    found = [place for place in map(backend.token_to_id, ENDS) if place is not None]
    if not found:
        raise EncoderError(f"the tokenizer has none of {', '.join(ENDS)}, and an expert needs to know where texts end")
    return int(found[0])


def _documents(tokenizer: Tokenizer, texts: Sequence[str]) -> Documents:
    ids, lengths = tokenizer.encode_many(texts)
    return tuple(np.split(ids, np.cumsum(lengths)[:-1])) if len(texts) else ()


def _enough(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> Documents:
    """The first documents that have so many tokens, or all of them."""
    found: list[Ids] = []
    for start in range(0, len(texts), FEW):
        if sum(map(len, found)) >= tokens:
            break
        found.extend(_documents(tokenizer, texts[start : start + FEW]))
    return tuple(found)


def _shuffled(texts: Sequence[str], seed: int) -> list[str]:
    """The order depends on nothing but the texts and the seed."""
    return random.Random(seed).sample(texts, len(texts))


def sequences(documents: Documents, end: int, tokens: int, length: int, seed: int) -> NDArray[np.int64]:
    """Rows of `length` + 1 ids: documents behind one another, an end before each, in another order every round.

    A row begins with the last id of the row before, so that each id is predicted once.
    """
    rows = max(1, tokens // length)
    stream, chance = [np.array([end])], random.Random(seed)
    while (have := sum(map(len, stream))) <= rows * length:
        for ids in chance.sample(documents, len(documents)):
            stream += [ids, np.array([end])]
        if sum(map(len, stream)) == have:
            raise EncoderError("a domain has no text to train an expert on")
    flat = np.concatenate(stream).astype(np.int64)
    return np.stack([flat[row * length : (row + 1) * length + 1] for row in range(rows)])
