"""Compares the tokenizer of the sentence encoder's pieces with SentencePiece itself:
`python -m tests.support.unigram_check --count 1000000`.

Texts are made of the vocabulary's own pieces, sentences in many languages, random characters of all
scripts, and what is odd: spaces and controls of all kinds, marks in heaps, emoji of several parts,
lone surrogates. Some are then changed letter by letter.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from sentencepiece import SentencePieceProcessor

from ridgeway.common.base.files import storable
from ridgeway.common.text.piece_model import piece_tokenizer
from ridgeway.common.text.sentence_source import use_files
from ridgeway.common.text.unigram import PieceTokenizer
from tests.support.native import without_native
from tests.support.sentence_texts import TEXTS

SPACES = [" ", "  ", "\t", "\n", "\r\n", "\v\f", "\x85", "\u2028", "\u3000", "\u00a0"]
SPACES += [
    "\u1680",
    "\u2009",
    "\u202f",
    "\u200b",
    "\ufeff",
    "\u2581",
    " \u2581",
    "\u180e",
]
ODD = [
    "\0",
    "\x01",
    "\x1b[0m",
    "\x7f",
    "\u200d",
    "\u200c",
    "\ufe0f",
    "\u20e3",
    "\u00ad",
]
ODD += [
    "\ufffe",
    "\uffff",
    "\U0010ffff",
    "\ufffd",
    "\ud800",
    "\udfff",
    "\ue000",
    "\u061c",
]
ODD += [
    "👩🏽\u200d🚀",
    "🏴\U000e0067\U000e0062\U000e007f",
    "🇩🇪",
    "1\ufe0f\u20e3",
    "❤️\u200d🔥",
]
ODD += [
    "ﷺ",
    "ﬃ",
    "㌀",
    "①②",
    "½",
    "ｶﾞ",
    "\u1112\u1161\u11ab",
    "क्षि",
    "ക്ഷ",
    "กำ",
    "ཨོཾ",
    "ǆ",
]
ODD += ["e\u0301\u0302\u0323", "\u0344", "\u0315\u0300\u05ae", "<s>", "</s>", "<unk>"]
ODD += [
    "extra_token_id_1",
    "extra_token_id_2\u0301",
    "xtra_token_id_3",
    "aaaa",
    "!!!",
    "0123",
]
BLOCKS = [
    range(0x20, 0x7F),
    range(0x20, 0x250),
    range(0x300, 0x370),
    range(0x370, 0x530),
    range(0x530, 0x780),
    range(0x900, 0xE00),
    range(0xE00, 0x1100),
    range(0x1100, 0x1200),
    range(0x1200, 0x2000),
    range(0x2000, 0x2070),
    range(0x2070, 0x2E00),
    range(0x2E80, 0x3400),
    range(0x4E00, 0xA000),
    range(0xAC00, 0xD7B0),
    range(0xF900, 0x10000),
    range(0x10000, 0x14000),
    range(0x1D000, 0x1D800),
    range(0x1F000, 0x1FB00),
    range(0x20000, 0x2FA20),
    range(0x110000),
]


def library() -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(use_files()[0]))


def vocabulary(by: SentencePieceProcessor) -> list[str]:
    """The pieces, with spaces as they stand in texts."""
    return [
        by.id_to_piece(number).replace("▁", " ") for number in range(by.vocab_size())
    ]


def texts(chance: random.Random, pieces: Sequence[str]) -> Iterator[str]:
    """Random texts without end."""
    sentences = list(TEXTS.values())
    words = [word for sentence in sentences for word in sentence.split()]
    while True:
        parts = []
        for _ in range(chance.choice((1, 2, 3, 5, 9, 30))):
            match chance.randrange(8):
                case 0 | 1:
                    parts += chance.choices(pieces, k=chance.randrange(1, 6))
                case 2:
                    parts.append(" ".join(chance.choices(words, k=3)))
                case 3:
                    parts.append(chance.choice(ODD))
                case 4:
                    parts.append(chance.choice(SPACES) * chance.choice((1, 1, 2)))
                case 5:
                    sentence = chance.choice(sentences)[:300]
                    begin = chance.randrange(len(sentence))
                    parts.append(sentence[begin : begin + chance.randrange(40)])
                case _:
                    block = chance.choice(BLOCKS)
                    some = chance.choices(block, k=chance.randrange(1, 8))
                    parts.append("".join(map(chr, some)))
        text = "".join(parts)
        yield text
        yield _changed(text, chance)


def _changed(text: str, chance: random.Random) -> str:
    """The text with some letters doubled, dropped, swapped or put elsewhere."""
    letters = list(text)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(letters) + 1)
        match chance.randrange(4):
            case 0:
                letters[place:place] = letters[place : place + 2]
            case 1:
                del letters[place : place + chance.randrange(1, 3)]
            case 2:
                letters[place : place + 2] = letters[place : place + 2][::-1]
            case _:
                letters.insert(place, chance.choice(ODD + SPACES))
    return "".join(letters)


def ids_of_each(tokenizer: PieceTokenizer, batch: list[str]) -> list[list[int]]:
    ids, lengths = tokenizer.encode_many(batch)
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return [part.tolist() for part in parts]


def letters_of_each(tokenizer: PieceTokenizer, batch: list[str]) -> list[str]:
    letters, lengths = tokenizer.normalise_many(batch)
    stops = np.cumsum(lengths).tolist()
    starts = [0, *stops]
    return [
        letters[start:stop].decode() for start, stop in zip(starts, stops, strict=False)
    ]


def difference(
    tokenizer: PieceTokenizer, by: SentencePieceProcessor, batch: list[str]
) -> str | None:
    """A text that has other ids than SentencePiece's, or another normalised form."""
    plain = list(map(storable, batch))
    ours = zip(
        ids_of_each(tokenizer, batch), letters_of_each(tokenizer, batch), strict=True
    )
    theirs = zip(by.encode(plain, num_threads=1), by.normalize(plain), strict=True)
    for text, found, expected in zip(batch, ours, theirs, strict=True):
        if found != expected:
            return f"{text!r}: {found}, not {expected}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="compare with SentencePiece")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reference", action="store_true", help="compare what Python does"
    )
    given = parser.parse_args()
    by = library()
    tokenizer = piece_tokenizer(use_files()[0].read_bytes())
    source = texts(random.Random(given.seed), vocabulary(by))
    differing = size = 0
    for begin in range(0, given.count, 1000):
        batch = [next(source) for _ in range(min(1000, given.count - begin) - 1)]
        # sums of many scores, which are rounded, and start again when they are large
        batch.append("".join(batch))
        size += sum(map(len, batch))
        if given.reference:
            with without_native():
                found = difference(tokenizer, by, batch)
        else:
            found = difference(tokenizer, by, batch)
        if found:
            differing += 1
            print(found)
            if differing == 10:
                break
    print(
        f"{begin + len(batch):,} texts of {size:,} characters: "
        f"{f'{differing} or more differ' if differing else 'all as SentencePiece'}"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
