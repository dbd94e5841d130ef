"""What cannot be used is refused: exit code 2, one sentence on stderr, nothing on stdout, and
nothing changed.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.routing.release import load_release
from ridgeway.common.statistics import load_prepared
from ridgeway.common.text.encoder_files import save_encoder
from tests.support.commands import Finished, Workshop, listing
from tests.support.corpora_on_disk import sentences, write_jsonl
from tests.support.tiny import tiny_encoder


@pytest.fixture
def folder(shop: Workshop, tmp_path: Path) -> Path:
    """A folder with the outputs of earlier runs: out.stats and release/."""
    shutil.copy(shop / "medicine.stats", tmp_path / "out.stats")
    shutil.copytree(shop / "release", tmp_path / "release")
    return tmp_path


def state(shop: Workshop, folder: Path) -> dict[str, str]:
    """Every file that a refused command must leave as it is; and the cache may not hold half a
    file.
    """
    half_written = [path for path in shop.cache.rglob("*") if path.name.startswith(".")]
    assert half_written == []
    kept = listing(shop.folder, folder)
    return {
        name: digest
        for name, digest in kept.items()
        if not name.startswith(str(shop.cache))
    }


def refused(
    shop: Workshop,
    folder: Path,
    *words: str | Path,
    in_process: bool = True,
    **options: Any,
) -> str:
    """A command that must be refused; returns the sentence."""
    before = state(shop, folder)
    done = (shop.call if in_process else shop.run)(*words, cwd=folder, **options)
    assert state(shop, folder) == before
    return sentence(done)


def sentence(done: Finished) -> str:
    assert re.fullmatch(r"ridgeway: [^\n]+\n", done.stderr), done.stderr
    return done.refusal.removeprefix("ridgeway: ")


@pytest.mark.parametrize("words", ["client inspect nowhere", "--unheard-of"])
def test_a_refusal_is_the_same_in_a_process_of_its_own(
    shop: Workshop, folder: Path, words: str
) -> None:
    """What the other tests see of the command's main function is what a shell sees of the
    command.
    """
    alone = refused(shop, folder, words, in_process=False)
    assert alone == refused(shop, folder, words)


# prepare


def refused_prepare(
    shop: Workshop, folder: Path, *words: str | Path, **options: Any
) -> str:
    """A refused `client prepare` into an existing file; a later option takes the place of an
    earlier one.
    """
    usual = ("client prepare --domain law --encoder", shop.encoder)
    out = ("--out", folder / "out.stats")
    return refused(shop, folder, *usual, *out, *words, **options)


CORPORA: dict[str, tuple[Callable[[Path], object], str]] = {
    "nowhere": (lambda path: None, r"there is no file or folder nowhere$"),
    "empty.txt": (Path.touch, r"empty\.txt contains no text; empty documents: 1"),
    "folder": (Path.mkdir, r"folder has no readable file; 0 were skipped"),
    "picture.txt": (
        lambda path: path.write_bytes(b"\x89PNG\0"),
        r"picture\.txt is a binary file, not text",
    ),
    "fields.jsonl": (
        lambda path: path.write_text('{"body": "x", "id": 7}\n'),
        r"fields\.jsonl, line 1: no field 'text'; its fields are body, id",
    ),
}


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_that_cannot_be_used_is_refused(
    shop: Workshop, folder: Path, name: str
) -> None:
    """The sentence names the file, the place in it and what was seen there."""
    make, message = CORPORA[name]
    make(folder / name)
    assert re.search(message, refused_prepare(shop, folder, name, "--holdout", "0"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--holdout 1.5", r"held-out share must be at least 0 and below 1, not 1\.5"),
        ("--holdout nan", r"held-out share must be .*, not nan"),
        ("--window 0", r"window is 0; it must be 1 to 65536"),
        (
            "--window some",
            r"'some' is not a valid integer; see ridgeway client prepare --help",
        ),
        ("--max-tokens -1", r"max_tokens is -1; it must be 0 to"),
        ("--threads -1", r"at least one thread is needed, not -1"),
        ("--domain a/b", r"invalid domain name 'a/b'"),
        ("--preset best", r"there is no preset 'best'; there are default and paper"),
        (
            "--encoder word2vec",
            r"there is no encoder .word2vec.; use use, smollm2, hf:NAME_OR_DIR or dir:PATH",
        ),
        ("--encoder dir:nowhere", r"nowhere contains no encoder"),
        ("--text-field ,", r"give at least one text field"),
        (
            "--part 5/4",
            r"'5/4' is not a part of a corpus; use --part 3/64 for the third of 64 parts",
        ),
        ("--out release", r"release is a folder; give a file to write"),
        ("--out out.stats/law.stats", r"out\.stats"),
        ("--color", r"No such option.*--color.*; see ridgeway client prepare --help"),
    ],
)
def test_a_word_that_prepare_cannot_use_is_refused(
    shop: Workshop, folder: Path, words: str, message: str
) -> None:
    """The sentence says what was given and what could be."""
    assert re.search(
        message, refused_prepare(shop, folder, shop / "law.jsonl", *words.split())
    )


def test_a_number_of_threads_is_minded_on_every_system(
    shop: Workshop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system cannot tell the affinity of a process, what was asked for is still what
    counts.
    """
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert "at least one thread is needed, not -1" in refused_prepare(
        shop, folder, shop / "law.jsonl", "--threads", "-1"
    )


def test_prepare_without_a_domain_or_a_file_is_refused(
    shop: Workshop, folder: Path
) -> None:
    """The sentence names what is missing."""
    out = ("--out", "out.stats", "--encoder", shop.encoder)
    assert "Missing option '--domain'" in refused(
        shop, folder, "client prepare", shop / "law.jsonl", *out
    )
    assert "Missing argument 'CORPUS...'" in refused(
        shop, folder, "client prepare --domain law", *out
    )


# Statistics files


def test_statistics_that_are_not_there_are_refused(
    shop: Workshop, folder: Path
) -> None:
    """By every command that reads them."""
    for words in (
        "client inspect law.stats",
        "coordinator solve --out release law.stats",
    ):
        assert refused(shop, folder, words) == "there is no statistics file law.stats"


def test_a_file_of_another_kind_is_no_statistics_file(
    shop: Workshop, folder: Path
) -> None:
    """Neither text nor the table of a router."""
    for path in (shop / "law.jsonl", folder / "release" / "router.safetensors"):
        assert "is not a statistics file, or is corrupt" in refused(
            shop, folder, "client inspect", path
        )


# solve


def refused_solve(
    shop: Workshop, folder: Path, *words: str | Path, **options: Any
) -> str:
    """A refused `coordinator solve` into the folder of an earlier release."""
    usual = ("--encoder", shop.encoder, "--out", folder / "release")
    return refused(shop, folder, "coordinator solve", *usual, *words, **options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--preset best", r"there is no preset 'best'; there are default and paper"),
        ("--threshold 0.5", r"to abstain below a threshold, name a fallback"),
        (
            "--threshold 1.5 --fallback x",
            r"threshold is a probability between 0 and 1, not 1\.5",
        ),
        ("--key-file nowhere.key", r"there is no key file nowhere\.key"),
        ("--key-file out.stats", r"out\.stats is not a private key in PEM form"),
        ("--encoder dir:nowhere", r"nowhere contains no encoder"),
    ],
)
def test_a_word_that_solve_cannot_use_is_refused(
    shop: Workshop, folder: Path, words: str, message: str
) -> None:
    """The sentence says what was given and what could be."""
    assert re.search(
        message,
        refused_solve(
            shop, folder, shop / "law.stats", shop / "code.stats", *words.split()
        ),
    )


@pytest.mark.parametrize(
    "words", [["law.stats"], ["law.stats", "code.stats", "--out", "thesis"]]
)
def test_a_refused_first_solve_makes_no_key(
    shop: Workshop, folder: Path, words: list[str]
) -> None:
    """The signing key is made when there is something to sign: the sentence stands alone."""
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.txt").write_text("years of work")
    for name in ("law.stats", "code.stats"):
        shutil.copy(shop / name, folder / name)
    refused_solve(shop, folder, *words, RIDGEWAY_CONFIG=str(folder / "config"))
    assert not (folder / "config").exists()


# A disk that is full


def small_files() -> None:
    """In the new process, let no file grow beyond a hundred bytes, as if the disk were full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize(
    "words",
    [
        "client prepare new.jsonl --domain law --out out.stats --encoder ENCODER",
        "coordinator solve law.stats code.stats --out release --encoder ENCODER",
        "coordinator solve law.stats code.stats --out new --encoder ENCODER",
        "evaluate release tests --propose --sign",
    ],
)
def test_a_full_disk_leaves_what_was_there(
    shop: Workshop, folder: Path, words: str
) -> None:
    """Earlier results stay whole, new ones are not there in part, and with room the same command
    succeeds.
    """
    write_jsonl(folder / "new.jsonl", sentences("law", 30))
    shutil.copytree(shop / "tests", folder / "tests")
    for name in ("law.stats", "code.stats"):
        shutil.copy(shop / name, folder / name)
    given = words.replace("ENCODER", shop.encoder)
    said = refused(shop, folder, given, in_process=False, before=small_files)
    assert said.startswith("the disk is full") and said.endswith(
        "run the same command again"
    )
    assert shop.call(given, cwd=folder).code == 0


# route, evaluate, encoder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "route nowhere prompt",
            r"nowhere contains no release: manifest\.json is missing",
        ),
        ("route . prompt", r"\. contains no release: manifest\.json is missing"),
        ("route out.stats prompt", r"out\.stats contains no release"),
        (
            "route release prompt --key " + 64 * "0",
            r"signed by .*, not by the key you trust \(000000000000…\)",
        ),
        ("route release prompt --key 0123", r"'0123' is not a public key"),
        (
            "route release prompt --threshold 0.5",
            r"to abstain below a threshold, name a fallback",
        ),
        (
            "route release prompt --threshold 7 --fallback x",
            r"threshold is a probability",
        ),
        ("route release", r"Missing argument 'PROMPT'; see ridgeway route --help"),
        ("evaluate release data --verbose", r"No such option.*--verbose"),
        ("evaluate release nowhere", r"there is no folder nowhere"),
        ("evaluate release .", r"has no code\.test\.jsonl; it has no test files"),
        ("evaluate nowhere .", r"nowhere contains no release"),
        ("encoder save word2vec copy", r"there is no encoder 'word2vec'"),
        ("encoder save dir:release copy", r"release contains no encoder"),
        ("encoder save dir:nowhere copy", r"nowhere contains no encoder"),
        ("unheard-of", r"No such command 'unheard-of'; see ridgeway --help"),
    ],
)
def test_a_command_that_cannot_be_done_is_refused(
    shop: Workshop, folder: Path, words: str, message: str
) -> None:
    """The sentence says what was seen, and where."""
    assert re.search(message, refused(shop, folder, words))


def test_only_the_signer_may_sign_a_proposal(shop: Workshop, folder: Path) -> None:
    """Another coordinator's key does not sign this one's release again."""
    key: dict[str, Any] = {"RIDGEWAY_CONFIG": str(folder / "config")}
    assert shop.solve("law.stats code.stats --out", folder / "other", **key).code == 0
    words = ("evaluate release --propose --sign", shop / "tests")
    said = refused(shop, folder, *words, **key)
    assert "set the coordinator's key with --key-file" in said
    assert load_release(shop / "release").signer[:12] in said


def test_statistics_of_another_encoder_than_is_named_are_refused(
    shop: Workshop, folder: Path
) -> None:
    """The sentence names both fingerprints."""
    other = tiny_encoder(seed=1)
    save_encoder(other, folder / "other")
    said = refused_solve(
        shop, folder, shop / "law.stats", shop / "code.stats", "--encoder", "dir:other"
    )
    assert other.fingerprint in said
    assert load_prepared(shop / "law.stats").fingerprint in said
