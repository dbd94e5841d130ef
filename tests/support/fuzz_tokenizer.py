"""Fuzzes the compiled module under AddressSanitizer and UBSan: `make fuzz`, or `--seconds 600` for
longer.

Builds it with the sanitizers, then starts a Python with their library and gives the tokenizer of
pieces random tables and texts, the runs of letters random bytes, and the sums and the sentence
network random numbers and lengths: nothing may crash, ids, letters and runs must be those that
Python gives, and sums and sentence vectors numpy's.
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
    """Try for a while. A crash ends the process, and so does what differs."""
    native = load(folder)
    chance = random.Random(seed)
    until = time.monotonic() + seconds
    rounds = 0
    networks = _sentence_networks(native)
    while time.monotonic() < until:
        rounds += 1
        for _ in range(5):
            _random_pieces(native, chance)
        for _ in range(20):
            _random_runs(native, chance)
            _random_windows(native, chance)
            _random_sums(native, chance)
        _random_sentences(*chance.choice(networks), chance)
    print(f"fuzzed: {rounds:,} rounds, seed {seed}: no crash, and nothing differs")
    return 0


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


def _random_runs(native: ModuleType, chance: random.Random) -> None:
    """Bytes, stops and counts of any kind: they are refused, or runs come of them that are
    numpy's.
    """
    import numpy as np

    from ridgeway.common.base.settings import WordFeatures
    from ridgeway.common.text.characters import lower_letters
    from ridgeway.common.text.word_sketch import WordSketch

    rolls = np.random.default_rng(chance.randrange(1 << 32))
    wrong = chance.choice((0, 0, 1))
    parts = [b"aB", b" ", b"\n", "é日😀".encode(), b"\xed\xa0\x80", rolls.bytes(3)]
    raw = b"".join(chance.choices(parts, k=chance.randrange(12)))
    # a copy of its own, so that the sanitizer sees where it ends
    letters = np.frombuffer(bytes(raw), np.uint8).copy()
    tokens = chance.randrange(9)
    stops = rolls.integers(-wrong, len(letters) + 1 + wrong, tokens)
    if chance.random() < 0.9:
        stops.sort()
    bounds = np.sort(rolls.integers(0, tokens + 1, chance.randrange(1, 4)))
    bounds[-1] = tokens + chance.choice((0, wrong))
    counts = np.diff(bounds, prepend=0)
    width = chance.choice((1, 5, 768, 1 << 14, (1 << 14) + wrong, 1 - wrong))
    with contextlib.suppress(ValueError):
        made = native.letter_runs(letters, stops, counts, lower_letters(), width)
        expected = WordSketch(WordFeatures(width)).reference(letters, stops, counts)
        assert made == tuple(array.tobytes() for array in expected)


def _random_windows(native: ModuleType, chance: random.Random) -> None:
    """Windows of any ids and runs: they are refused, or means come of them that are numpy's."""
    import numpy as np

    from ridgeway.common.base.settings import WordFeatures
    from ridgeway.common.text.word_sketch import Runs, WordSketch

    rolls = np.random.default_rng(chance.randrange(1 << 32))
    wrong = chance.choice((0, 0, 1))
    rows, width, tokens = chance.randrange(1, 5), chance.randrange(1, 60), 6
    words = chance.randrange(1, 9)
    count = chance.randrange(1, 40)
    table = rolls.integers(-4096, 4097, (rows, width)).astype(np.int16)
    ids = rolls.integers(-wrong, rows + wrong, count).astype(np.int32)
    positions = rolls.integers(-wrong, tokens + wrong, count).astype(np.int32)
    bounds = np.unique([0, *rolls.integers(0, count + 1 + wrong, 4), count])
    runs = _any_runs(rolls, tokens, words, wrong)
    means = np.zeros((len(bounds) - 1, width + words), np.int16)
    with contextlib.suppress(ValueError):
        operands = table, width, ids, bounds, means, positions, *runs, words, 900
        native.row_means(*operands)
        counts = np.diff(bounds)[:, None]
        sums = np.add.reduceat(table[ids].astype(np.int64), bounds[:-1], axis=0)
        assert np.array_equal(means[:, :width], (2 * sums + counts) // (2 * counts))
        sketch = WordSketch(WordFeatures(words, 900))
        features = sketch.window_features(Runs(*runs), positions, bounds)
        assert np.array_equal(means[:, width:], features)


def _random_sums(native: ModuleType, chance: random.Random) -> None:
    """Texts of any ids and runs: they are refused, or sums come of them that are numpy's."""
    import numpy as np

    rolls = np.random.default_rng(chance.randrange(1 << 32))
    wrong = chance.choice((0, 0, 1))
    rows, width = chance.randrange(5), chance.randrange(1, 40)
    heights = chance.choice((1, 9, 700))
    counts = rolls.integers(-wrong, 9, chance.randrange(5))
    tokens = int(counts.clip(0).sum()) + chance.choice((0, wrong))
    table = rolls.integers(-(1 << 15), 1 << 15, (rows, width)).astype(np.int16)
    ids = rolls.integers(-wrong, (rows or 99) + wrong, tokens).astype(np.int32)
    shifts = rolls.integers(0, 17 + wrong, width).astype(np.uint8)
    buckets = rolls.integers(-(1 << 31), 1 << 31, (heights, width)).astype(np.int32)
    codes, stops = _any_runs(rolls, tokens, heights, wrong)
    with contextlib.suppress(ValueError):
        operands = ids, counts, table, width, shifts, buckets, codes, stops
        made = np.frombuffer(native.token_sums(*operands), np.int64)
        texts = np.repeat(np.arange(len(counts)), counts)
        sums = np.zeros((len(counts), width), np.int64)
        if rows:
            np.add.at(sums, texts, table[ids].astype(np.int64))
        used = codes[: stops[-1] if tokens else 0].astype(np.int64)
        signed = (2 * (used & 1) - 1)[:, None] * buckets[used >> 1].astype(np.int64)
        np.add.at(sums, np.repeat(texts, np.diff(stops, prepend=0)), signed)
        assert np.array_equal(made, (sums << shifts.astype(np.int64)).ravel())


def _any_runs(rolls: Any, tokens: int, buckets: int, wrong: int) -> tuple[Any, Any]:
    """Codes, and where the runs of each token end; some of them wrong."""
    import numpy as np

    sizes = rolls.integers(-wrong, 9, tokens)
    count = max(0, int(sizes.sum()) + int(rolls.integers(-wrong, 3)))
    codes = rolls.integers(0, 2 * buckets + wrong, count).astype(np.uint16)
    return codes, np.cumsum(sizes)


if __name__ == "__main__":
    sys.exit(main())
