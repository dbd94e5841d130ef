"""Fuzzes the compiled tokenizer under AddressSanitizer and UBSan: `make fuzz`, or `--seconds 600` for longer.

Builds the extension with the sanitizers, then starts a Python with their library and gives it random tables, every
character in every context, and random texts: nothing may crash, and ids must be the tokenizers library's. What is found
belongs into FRAGMENTS of tests/support/tokenizer_definitions.py, which the tests then try for ever after.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "common" / "encoding" / "byte_bpe.c"
NAME = "ridgeway.common.encoding.byte_bpe"
SANITIZERS = "-fsanitize=address,undefined"


def main() -> int:
    """Build, and fuzz in another process; its exit code."""
    parser = argparse.ArgumentParser(description="fuzz the compiled tokenizer")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.library:
        return fuzz(given.library, given.seconds, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "byte_bpe.abi3.so"
        include = f"-I{sysconfig.get_path('include')}"
        flags = ["-O1", "-g", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", SANITIZERS, include]
        subprocess.run(["gcc", *flags, "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
        found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment = os.environ | {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
        again = [sys.executable, "-m", "tests.support.fuzz_tokenizer", "--library", str(library)]
        times = ["--seconds", str(given.seconds), "--seed", str(given.seed)]
        return subprocess.run([*again, *times], env=environment, check=False).returncode


def load(library: Path) -> ModuleType:
    """The extension of this file, in the place of the one that is installed."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


def fuzz(library: Path, seconds: float, seed: int) -> int:
    """Try for a while; 1 if ids differ. A crash ends the process."""
    module = load(library)
    from ridgeway.common.encoding.tokenizer import Tokenizer
    from tests.support.tokenizer_definitions import FRAGMENTS, PATTERNS, definition, every_character

    forms = [{"pattern": pattern, "whole_words": whole} for pattern in PATTERNS for whole in (False, True)]
    made = [Tokenizer(definition(**form)) for form in forms]
    assert all(each.make_fast() for each in made)
    chance, until, tried = random.Random(seed), time.monotonic() + seconds, 0
    every = list(every_character())
    chance.shuffle(every)
    while time.monotonic() < until:
        _random_tables(module, chance)
        texts = [every.pop() for _ in range(min(len(every), 8))]
        texts += ["".join(chance.choices(FRAGMENTS, k=chance.randrange(40))) for _ in range(40)]
        texts += ["".join(map(chr, chance.choices(range(0xD800), k=chance.randrange(60)))) for _ in range(20)]
        tokenizer = chance.choice(made)
        for text in texts:
            tried += 1
            if tokenizer.encode(text).tolist() != tokenizer._by_the_library([text])[0].tolist():
                print(f"other ids by {forms[made.index(tokenizer)]} for {text!r}")
                return 1
    print(f"fuzzed: {tried:,} texts and as many tables, seed {seed}: no crash, and all ids the library's")
    return 0


def _random_tables(module: ModuleType, chance: random.Random) -> None:
    """Tables of any content: they are refused, or an encoder comes of them that writes nothing out of bounds."""
    import numpy as np

    def numbers(count: int, most: int) -> bytes:
        return np.array(
            [chance.choice((chance.randrange(most), 0xFFFFFFFF)) for _ in range(count)], np.uint32
        ).tobytes()

    classes = bytes(chance.choices(range(4), k=64)) * (0x110000 // 64)
    tables: list[Any] = [chance.randrange(4), classes, numbers(256, 300), numbers(3 * chance.randrange(60), 300)]
    for _ in range(2):
        blob = chance.randbytes(chance.randrange(40))
        tables += [numbers(3 * chance.randrange(6), 20), blob]
    try:
        encoder = module.Encoder(*tables)
    except ValueError:
        return
    encoder.encode_many(["".join(map(chr, chance.choices(range(0x2100), k=50))) for _ in range(5)])


if __name__ == "__main__":
    sys.exit(main())
