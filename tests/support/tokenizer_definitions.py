"""Definitions of small byte-level tokenizers, made on the spot, and texts in which much is met that
could go wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from ridgeway.common.text.characters import CODE_POINTS
from ridgeway.common.text.fast_bpe import SPLITS, SURROGATES, byte_letters

PATTERNS = ("gpt2", "digits", "cl100k", "qwen2", "o200k")
SPECIAL = ("<|a|>", "<|ab|>")
PLAIN_ADDED = ("<tool>", "<tools")
SENTENCES = (
    (
        "The court held that the defendant's motion, filed in 1987, wasn't "
        "timely; they'd've lost anyway."
    ),
    (
        "def gather(self, names: list[str]) -> dict[str, int]:\n    return {name: "
        "len(name) for name in names}\n"
    ),
    "東京に行く naïve café ſ 'ſ IT'S THEY'LL we'Re ١٢٣ ½ 12345\r\n\r\n  x\t\ty 🙂🙂 \u00a0\u2003",
)
CONTEXTS = (
    "{}",
    "a{}b",
    " {}1",
    "'{}",
    "{} x",
    "1{}2",
    "\n{}\n",
    "!{}'s",
    "  {}",
    "'l{}",
    "\t{}{}",
    "A{}B's",
)
"""Where a character is tried: what the words before and after it become depends on its class alone.
"""
FRAGMENTS = (
    " ",
    "  ",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "a",
    "B",
    "é",
    "ſ",
    "'",
    "'s",
    "'LL",
    "'Re",
    "'ſ",
    "1",
    "23",
    "٣",
    "½",
    "!",
    "?",
    "-",
    "東",
    "🙂",
    "\u0301",
    "\u00a0",
    "\u2028",
    "<|a",
    "\x00",
    "\x7f",
    "\u200d",
    "ﬁ",
    "\u0338",
    "\u1100\u1161",
    "\u0323",
    "x" * 70,
    "ab" * 200,
    " " * 30,
    "/",
    "ǅ",
    "ʰ",
    "the",
    " the",
    "\U0001d7d8",
    "\U00011de0",
    *SPECIAL,
    *PLAIN_ADDED,
)


@cache
def definition(
    pattern: str,
    *,
    whole_words: bool = False,
    without: bytes = b"",
    nfc: bool = False,
    known: str = "",
) -> bytes:
    """A definition with this pattern.

    whole_words: words that are tokens are taken as they are, before any merging; some can be had in
                 no other way.
    without:     bytes that the vocabulary lacks.
    nfc:         texts are brought to Unicode's form NFC.
    known:       letters of which all words of up to three are tokens: ids then tell where words
                 begin.
    """
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split(pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=list(byte_letters().values()),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [sentence for sentence in SENTENCES for _ in range(50)], trainer
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED])
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    model = made["model"]
    if whole_words:
        model |= {
            "ignore_merges": True,
            "merges": model["merges"][: len(model["merges"]) // 2],
        }
    letters = byte_letters()
    words = (
        "".join(word).encode()
        for size in (1, 2, 3)
        for word in product(known, repeat=size)
    )
    for number, word in enumerate(words, start=1000):
        model["vocab"].setdefault("".join(map(letters.__getitem__, word)), number)
    lacking = {letters[byte] for byte in without}
    model["vocab"] = {
        token: number
        for token, number in model["vocab"].items()
        if not lacking & set(token)
    }
    model["merges"] = [
        pair for pair in model["merges"] if not lacking & set("".join(pair))
    ]
    return json.dumps(made).encode()


def _split(pattern: str) -> Any:
    if pattern in ("gpt2", "digits"):
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return (
            by_bytes
            if pattern == "gpt2"
            else pre_tokenizers.Sequence([pre_tokenizers.Digits(True), by_bytes])
        )
    expression = next(
        text for text, number in SPLITS.items() if number == PATTERNS.index(pattern)
    )
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated"), by_bytes]
    )


def every_character(contexts: Iterable[str] = CONTEXTS, step: int = 1) -> Iterator[str]:
    """Texts in which every character stands in every context; with a step, every so manieth of
    them.
    """
    characters = [
        chr(number)
        for number in range(0, CODE_POINTS, step)
        if number not in SURROGATES
    ]
    for context in contexts:
        for start in range(0, len(characters), 256):
            yield "".join(
                context.replace("{}", character)
                for character in characters[start : start + 256]
            )
