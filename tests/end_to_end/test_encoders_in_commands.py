"""Every source of an encoder in every command that takes one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ridgeway.common.text.encoder_files import save_encoder
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import ALPHABETS, write_domains
from tests.support.tiny import LETTERS, tiny_definition, tiny_encoder

WIDTH = 16
DOMAINS = tuple(ALPHABETS)[:2]
FEATURES = ("", "+words", "+sentence", "+words+sentence")
SOURCES = (
    *("use", "use+words", "use+words+sentence", "smollm2+words"),
    *(f"dir:encoder{features}" for features in FEATURES),
    *(f"hf:model{features}" for features in FEATURES),
)


@pytest.fixture(scope="module")
def shop(
    tmp_path_factory: pytest.TempPathFactory, use_cache: Path, smollm2_cache: Path
) -> Workshop:
    """A folder with corpora, a saved encoder, and a model as Hugging Face's folders have it."""
    folder = tmp_path_factory.mktemp("sources")
    save_encoder(tiny_encoder(WIDTH), folder / "encoder")
    write_domains(folder / "data", 60, 15)
    write_model(folder / "model", seed=1)
    made = Workshop(folder)
    made.share(use_cache)
    made.share(smollm2_cache)
    return made


def write_model(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tiny_definition())
    rows = np.random.default_rng(seed).standard_normal((len(LETTERS) + 2, WIDTH))
    tensors = {"model.embed_tokens.weight": rows.astype(np.float32)}
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_works_in_every_command(shop: Workshop, source: str) -> None:
    """A federation, and files of sums, whose release routes."""
    name = source.replace(":", "-")
    shop.do("simulate --data data --encoder", source, "--out", f"{name}-simulated")
    files = []
    for domain in DOMAINS:
        files.append(f"{name}-{domain}.stats")
        corpus = f"data/{domain}.train.jsonl"
        words = ("--domain", domain, "--encoder", source, "--out", files[-1])
        shop.do("client prepare", corpus, *words)
    shop.do("coordinator solve", *files, "--encoder", source, "--out", f"{name}-solved")
    for release in ("simulated", "solved"):
        found = shop.do("evaluate", f"{name}-{release}", "data", "--json").stdout
        assert json.loads(found)["domains"]


def test_sums_find_the_folder_that_their_encoder_came_from(shop: Workshop) -> None:
    """Its name does not say where it lies: this machine has noted it. A folder that has changed or
    gone is asked for.
    """
    write_model(shop / "other", seed=2)
    files = [f"other-{domain}.stats" for domain in DOMAINS]
    for domain, file in zip(DOMAINS, files, strict=True):
        corpus = f"data/{domain}.train.jsonl"
        words = ("--domain", domain, "--encoder", "hf:other+words", "--out", file)
        shop.do("client prepare", corpus, *words)
    solve = ("coordinator solve", *files, "--out")
    shop.do(*solve, "noted")
    write_model(shop / "other", seed=3)
    changed = shop.call(*solve, "changed")
    shutil.rmtree(shop / "other")
    gone = shop.call(*solve, "gone")
    for done in (changed, gone):
        assert "the statistics need a local encoder" in done.refusal
    assert not (shop / "gone").exists()
