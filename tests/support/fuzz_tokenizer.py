"""Fuzzes the compiled module under AddressSanitizer and UBSan: `make fuzz`, or `--seconds 600` for
longer.

Builds it with the sanitizers, then starts a Python with their library and gives the tokenizer
random tables, every character in every context, and random texts, and the sums and the sentence
network random numbers and lengths: nothing may crash, ids must be the tokenizers library's, or
those that Python gives for the tokenizer of pieces, and sums and sentence vectors numpy's. What is
found in texts belongs into FRAGMENTS of tests/support/tokenizer_definitions.py, which the tests
then try for ever after.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from ridgeway.common.deploy.approved_bundle import NATIVE

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = "-fsanitize=address,undefined,float-cast-overflow"


def main() -> int:
    """Build, and fuzz in another process; its exit code."""
    parser = argparse.ArgumentParser(description="fuzz the compiled module")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--built", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.built:
        return fuzz(given.built, given.seconds, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        include = f"-I{sysconfig.get_path('include')}"
        flags = "-O1 -g -fno-sanitize-recover=all -fno-omit-frame-pointer".split()
        library = Path(folder) / "_native.abi3.so"
        sources = map(str, (ROOT / "common/native").glob("*.c"))
        subprocess.run(
            [
                "gcc",
                *flags,
                SANITIZERS,
                include,
                "-shared",
                "-fPIC",
                *sources,
                "-o",
                library,
            ],
            check=True,
        )
        sanitizer = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"],
            capture_output=True,
            text=True,
            check=True,
        )
        environment = os.environ | {
            "LD_PRELOAD": sanitizer.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        words = (
            f"-m tests.support.fuzz_tokenizer --seconds {given.seconds} "
            f"--seed {given.seed} --built"
        )
        again = [sys.executable, *words.split(), folder]
        return subprocess.run(again, env=environment).returncode


def load(folder: Path) -> ModuleType:
    """The compiled module of this folder, in the place of the one that is installed."""
    spec = importlib.util.spec_from_file_location(NATIVE, folder / "_native.abi3.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NATIVE] = module
    spec.loader.exec_module(module)
    return module


def fuzz(folder: Path, seconds: float, seed: int) -> int:
    """Try for a while; 1 if ids differ. A crash ends the process."""
    native = load(folder)
    from ridgeway.common.text.tokenizer import Tokenizer
    from tests.support.tokenizer_definitions import (
        FRAGMENTS,
        PATTERNS,
        definition,
        every_character,
    )

    forms: list[dict[str, Any]] = [
        {"pattern": pattern, "whole_words": whole}
        for pattern in PATTERNS
        for whole in (False, True)
    ]
    forms.append({"pattern": "qwen2", "nfc": True})
    made = [Tokenizer(definition(**form)) for form in forms]
    assert all(tokenizer.make_fast() for tokenizer in made)
    chance, until, tried = random.Random(seed), time.monotonic() + seconds, 0
    networks = _sentence_networks(native)
    every = list(every_character())
    chance.shuffle(every)
    while time.monotonic() < until:
        _random_tables(native, chance)
        for _ in range(5):
            _random_pieces(native, chance)
        for _ in range(40):
            _random_sums(native, chance)
        _random_sentences(*chance.choice(networks), chance)
        texts = [every.pop() for _ in range(min(len(every), 8))]
        texts += [
            "".join(chance.choices(FRAGMENTS, k=chance.randrange(40)))
            for _ in range(40)
        ]
        texts += [
            "".join(map(chr, chance.choices(range(0xD800), k=chance.randrange(60))))
            for _ in range(20)
        ]
        tokenizer = chance.choice(made)
        for text in texts:
            tried += 1
            if (
                tokenizer.encode(text).tolist()
                != tokenizer._by_the_library([text])[0].tolist()
            ):
                print(f"other ids by {forms[made.index(tokenizer)]} for {text!r}")
                return 1
    print(
        f"fuzzed: {tried:,} texts and as many tables, seed {seed}: no crash, "
        "and all ids the library's"
    )
    return 0


def _random_tables(module: ModuleType, chance: random.Random) -> None:
    """Tables of any content: they are refused, or an encoder comes of them that writes nothing out
    of bounds.
    """
    import numpy as np

    def numbers(count: int, most: int) -> bytes:
        return np.array(
            [chance.choice((chance.randrange(most), 0xFFFFFFFF)) for _ in range(count)],
            np.uint32,
        ).tobytes()

    pattern = chance.randrange(5)
    classes = bytes(
        chance.choices([1 << index for index in range(7 if pattern == 4 else 4)], k=64)
    ) * (0x110000 // 64)
    tables: list[Any] = [
        pattern,
        classes,
        numbers(256, 300),
        numbers(3 * chance.randrange(60), 300),
    ]
    for _ in range(2):
        blob = chance.randbytes(chance.randrange(40))
        tables += [numbers(3 * chance.randrange(6), 20), blob]
    try:
        encoder = module.Encoder(*tables)
    except ValueError:
        return
    texts = ["".join(map(chr, chance.choices(range(0x2100), k=50))) for _ in range(5)]
    encoder.encode_many(texts)
    encoder.encode_many(
        texts,
        np.frombuffer(
            numbers(chance.randrange(0x900), chance.choice((0x80, 0x110000))), np.uint8
        ),
    )


def _sentence_networks(native: ModuleType) -> list[tuple[Any, Any]]:
    """Networks of numbers at their bounds and of usual ones, in each variant that runs here, each
    beside numpy's.
    """
    import numpy as np

    from ridgeway.common.text.sentence_encoder import _sums_over_texts
    from ridgeway.common.text.sentence_network import SentenceNetwork
    from tests.support.sentence_networks import random_network

    made = []
    for seed, share in enumerate((1.0, 0.02)):
        numbers = random_network(seed, share)
        reference = SentenceNetwork(numbers, np, np.asarray, _sums_over_texts)
        for variant in native.sentence_variants():
            compiled = native.SentenceNetwork(**numbers.arrays(), variant=variant)
            made.append((compiled, reference))
    return made


def _random_sentences(compiled: Any, reference: Any, chance: random.Random) -> None:
    """Texts of any ids and lengths: they are refused, or get numpy's vectors and rows."""
    import numpy as np

    from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
    from tests.support.sentence_networks import PIECES

    rolls = np.random.default_rng(chance.randrange(1 << 32))
    wrong = chance.choice((0, 0, 1))
    lengths = rolls.integers(1 - wrong, 12, chance.randrange(6))
    if chance.random() < 0.1:
        lengths = np.append(lengths, rolls.integers(120, 140 + 1000 * wrong))
    tokens = int(lengths.sum()) + chance.choice((0, wrong, -wrong))
    low, high = -wrong, PIECES + wrong
    ids = rolls.integers(low, high, max(0, tokens)).astype(np.int32)
    texts = len(lengths) + chance.choice((0, wrong))
    vectors = np.zeros((texts, SENTENCE_WIDTH), np.int16)
    with contextlib.suppress(ValueError):
        compiled.vectors(ids, lengths, vectors)
        if len(lengths):
            assert np.array_equal(vectors, reference.vectors(ids, lengths))
    rows = np.zeros((len(ids) + chance.choice((0, wrong)), SENTENCE_WIDTH), np.int32)
    with contextlib.suppress(ValueError):
        compiled.pieces(ids, rows)
        if len(ids):
            assert np.array_equal(rows, reference.piece_rows(ids))


def _random_pieces(module: ModuleType, chance: random.Random) -> None:
    """Double arrays with links of any kind: they are refused, or a tokenizer of pieces comes of
    them that reads and writes nothing out of bounds, and says what Python says.
    """
    import numpy as np

    from ridgeway.common.text.piece_model import double_array
    from ridgeway.common.text.unigram import VALUE_BIT, PieceTokenizer

    letters = "ab ▁é̈क्ष\t\n😀".encode()
    replacements = chance.choice((b"a\0", b" \0b \0", "▁\0é\0\0".encode()))
    tables: list[Any] = []
    for most in (9, len(replacements)):
        keys = {
            bytes(chance.choices(letters, k=chance.randrange(1, 4))): chance.randrange(
                most
            )
            for _ in range(chance.randrange(1, 20))
        }
        links = double_array(keys)
        used = np.flatnonzero(links != VALUE_BIT)
        for _ in range(chance.choice((0, 0, 1, 4))):
            # to another place in the first block, mostly, with or without a value
            place = int(chance.choice(used))
            reach = chance.choice((256, 256, 256, 1024, 1 << 21))
            offset = place ^ chance.randrange(reach)
            links[place] = links[place] & 0x800000FF | chance.randrange(2) << 8
            links[place] |= (offset << 10) & 0x7FFFFC00
        tables.append(links)
    scores = np.array([chance.uniform(-20, 1) for _ in range(9)], np.float32)
    pieces, rules = tables
    texts = ["".join(map(chr, chance.choices(range(0x2600), k=30))) for _ in range(2)]
    texts += [
        "".join(chance.choices("ab ▁é̈क्ष\t\n😀\0", k=chance.choice((3, 30, 3000))))
        for _ in range(4)
    ]
    given = pieces, scores, rules, np.frombuffer(replacements, np.uint8)
    try:
        made = module.Unigram(*given)
    except ValueError:
        return
    made.encode_many(texts, chance.randrange(9))
    made.letters_many(texts, chance.randrange(9))
    ids, _, spans = made.spans(texts)
    assert len(spans) == 2 * len(ids)
    reference = PieceTokenizer(*given)
    for text in texts:
        normalised = reference._normalised(text.encode())
        letters, _ = made.normalise_many([text])
        assert letters == normalised.letters
        ids, _ = made.encode_many([text])
        pairs = reference._ids_with_letters(text.encode())
        assert np.frombuffer(ids, np.uint32).tolist() == [number for number, _ in pairs]
        limit = chance.choice((0, 0, 1, 2, 9))
        chosen = pairs[:limit] if limit else pairs
        ids, _, letters, stops = made.letters_many([text], limit)
        assert np.frombuffer(ids, np.uint32).tolist() == [
            number for number, _ in chosen
        ]
        starts = [0, *np.frombuffer(stops, np.int64).tolist()]
        parts = [bytes(letters[start:stop]) for start, stop in pairwise(starts)]
        assert parts == [part for _, part in chosen]
        assert starts[-1] == len(letters)


def _random_sums(native: ModuleType, chance: random.Random) -> None:
    """Buffers of any lengths and values: they are refused, or sums come of them that are
    numpy's.
    """
    import numpy as np

    from ridgeway.common.base.settings import WordFeatures
    from ridgeway.common.text.word_sketch import Spelling, WordSketch

    rolls = np.random.default_rng(chance.randrange(1 << 32))
    rows, width, ids = (
        chance.randrange(1, 5),
        chance.randrange(1, 60),
        chance.randrange(0, 40),
    )
    wrong = chance.choice((0, 0, 1))
    table = rolls.integers(-4096 - wrong, 4097 + wrong, (rows, width)).astype(np.int16)
    numbers = rolls.integers(-wrong, rows + wrong, ids).astype(np.int32)
    bounds = np.unique(np.array([0, *rolls.integers(0, ids + 1 + wrong, 4), ids]))
    counts, given = np.diff(bounds), max(1, width + chance.choice((0, 0, 0, -1, 1)))
    means = np.zeros((len(bounds) - 1, width), dtype=np.int16)
    with contextlib.suppress(ValueError):
        native.row_means(table, given, numbers, bounds, means)
        if given == width and not wrong:
            sums = (
                np.add.reduceat(table[numbers].astype(np.int64), bounds[:-1], axis=0)
                if ids
                else means
            )
            assert np.array_equal(
                means, (2 * sums + counts[:, None]) // (2 * counts[:, None])
            )
    with contextlib.suppress(ValueError):
        sums_found = native.token_sums(numbers, counts, table.astype(np.int32), given)
        if given == width and ids:
            expected = np.add.reduceat(
                table[numbers].astype(np.int64), bounds[:-1], axis=0
            )
            assert sums_found == expected.tobytes()
    buckets = rolls.integers(-9, 10, (chance.randrange(4), width)).astype(np.int32)
    letters = rolls.choice(
        np.frombuffer(b"ab9 .\xc3\xa9", dtype=np.uint8), chance.randrange(30)
    )
    starts = np.sort(
        rolls.integers(
            -wrong, len(letters) + 1 + wrong, rows + 1 + chance.choice((0, 0, 0, wrong))
        )
    )
    shortest, longest = chance.randrange(2 - wrong, 4), chance.randrange(3, 6 + wrong)
    with contextlib.suppress(ValueError):
        words = buckets, letters, starts, shortest, longest
        operands: tuple[Any, ...] = (table.astype(np.int32), given, *words)
        sums_found = native.token_sums(numbers, counts, *operands)
        with_rows = (
            *operands,
            rolls.integers(-9, 10, (rows, given)).astype(np.int32),
            rolls.bytes(rows - wrong),
        )
        native.token_sums(numbers, counts, *with_rows)
        if given == width and ids:
            sketch = WordSketch(
                WordFeatures(len(buckets), shortest=shortest, longest=longest),
                Spelling(letters, starts),
            )
            counted = sketch.window_counts(numbers, bounds) @ buckets.astype(np.int64)
            sums = np.add.reduceat(table[numbers].astype(np.int64), bounds[:-1], axis=0)
            assert sums_found == (sums + counted).tobytes()


if __name__ == "__main__":
    sys.exit(main())
