"""A sentence encoder out of a model's folder through the commands, and a machine that lacks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeway.common.text.encoder_files import save_encoder
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import (
    ALPHABETS,
    sentences,
    write_domains,
    write_jsonl,
)
from tests.support.making import contents
from tests.support.tiny import tiny_encoder
from tests.support.tiny_models import make_model

DOMAINS = tuple(sorted(ALPHABETS))
ENCODER = "dir:tiny+sentence:model"


@pytest.fixture(scope="module")
def shop(module_path: Path) -> Workshop:
    """A table, a model, corpora whole and in halves, test texts."""
    made = Workshop(module_path)
    make_model(made / "model")
    save_encoder(tiny_encoder(), made / "tiny")
    write_domains(made / "data", 40, 8)
    for domain in DOMAINS:
        texts = sentences(domain, 40)
        write_jsonl(made / f"{domain}-1.jsonl", texts[:13])
        write_jsonl(made / f"{domain}-2.jsonl", texts[13:])
    return made


def prepared(shop: Workshop, corpus: Path, domain: str, out: str) -> Path:
    words = f"--holdout 0 --threads 2 --encoder {ENCODER} --domain {domain}"
    shop.do(f"client prepare {words} --out", out, corpus)
    return shop / out


def solved(shop: Workshop, out: str) -> Path:
    """The release of the whole corpora."""
    parts = [
        prepared(
            shop, shop / "data" / f"{name}.train.jsonl", name, f"{out}-{name}.stats"
        )
        for name in DOMAINS
    ]
    shop.do("coordinator solve", *parts, "--out", out, "--encoder", ENCODER)
    return shop / out


def test_from_a_folder_to_a_decision(shop: Workshop) -> None:
    """Holders with halves of a corpus give the router of the pooled corpus, byte for byte; it tells
    domains apart.
    """
    pooled = solved(shop, "pooled")
    halves = [
        prepared(shop, shop / f"{name}-{half}.jsonl", name, f"{name}-{half}.stats")
        for name in DOMAINS
        for half in (1, 2)
    ]
    shop.do("coordinator solve --out federated", *halves, "--encoder", ENCODER)
    assert (
        contents(pooled)["router.safetensors"]
        == contents(shop / "federated")["router.safetensors"]
    )
    assert (
        json.loads((pooled / "manifest.json").read_bytes())["encoder"]["sentences"][
            "name"
        ]
        == "local"
    )

    text = sentences("law", 60)[-1]
    for use in ("auto", "always", "never"):
        routed = shop.do("route pooled --explain --json", text, "--sentences", use).json
        assert routed["best"] == "law"
        assert "".join(word["text"] for word in routed["explanation"]) == text
    measured = shop.do("evaluate pooled data --json --sentences always").json
    assert measured["accuracy"] > 80
    assert measured["decided_by"]["sentences"] == 24
    signed = shop.do("evaluate pooled data --propose --sign --json").json
    fitted = signed["proposal"]["confidence"]
    assert fitted["texts"] == 24


@pytest.mark.parametrize("mode", ["", "--clear"])
def test_a_federation_is_simulated(shop: Workshop, mode: str) -> None:
    """A masked round and a clear one, with held-out text."""
    words = f"simulate --data data --json --encoder {ENCODER} {mode}"
    result = shop.do(words).json
    assert result["accuracy"] > 80
    assert result["held_out"]["documents"] > 0


def test_its_sums_are_audited(shop: Workshop) -> None:
    """As those of any encoder: the attacks use its table."""
    path = prepared(shop, shop / "law-1.jsonl", "law", "audited.stats")
    finished = shop.call(
        "audit --corpus law-1.jsonl --json", path, "--encoder", ENCODER
    )
    assert isinstance(finished.json, dict)


def test_a_release_names_what_it_lacks(shop: Workshop, tmp_path: Path) -> None:
    """On a machine that has never seen the model; its folder may be named, or its sentences
    left.
    """
    solved(shop, "lacking")
    nowhere = str(tmp_path / "empty")
    refused = shop.run("route lacking a", RIDGEWAY_CACHE=nowhere)
    assert "set RIDGEWAY_SENTENCE_MODEL to the right folder" in refused.refusal
    assert len(refused.stderr.strip().splitlines()) == 1
    without = shop.run(
        "route lacking a --sentences never --json",
        RIDGEWAY_CACHE=nowhere,
    )
    assert without.json["tokens"] == 1
    found = shop.run(
        "route lacking a --json",
        RIDGEWAY_CACHE=nowhere,
        RIDGEWAY_SENTENCE_MODEL=str(shop / "model"),
    )
    assert found.json["tokens"] == 1


@pytest.mark.parametrize(
    ("reader", "sentence"),
    [
        ("data", "data has no config.json"),
        (
            "nowhere",
            "there is no sentence encoder 'nowhere'; use the folder of a model",
        ),
    ],
)
def test_what_cannot_be_prepared_is_one_sentence(
    shop: Workshop, reader: str, sentence: str
) -> None:
    """And nothing is written."""
    words = f"--domain law --out no.stats --encoder dir:tiny+sentence:{reader}"
    assert sentence in shop.call(f"client prepare law-1.jsonl {words}").refusal
    assert not (shop / "no.stats").exists()
