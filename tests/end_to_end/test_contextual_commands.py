"""A contextual encoder through the command line: prepare, solve, route, evaluate, simulate, and what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Finished, Workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.making import contents
from tests.support.tiny_models import make_model

DOMAINS = tuple(sorted(ALPHABETS))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A model, corpora whole and in halves, test texts."""
    made = Workshop(tmp_path_factory.mktemp("shop"))
    make_model(made / "model")
    for domain in DOMAINS:
        texts = sentences(domain, 48)
        write_jsonl(made / "data" / f"{domain}.train.jsonl", texts[:40])
        write_jsonl(made / "data" / f"{domain}.test.jsonl", texts[40:])
        write_jsonl(made / f"{domain}-1.jsonl", texts[:13])
        write_jsonl(made / f"{domain}-2.jsonl", texts[13:40])
    return made


def done(finished: Finished) -> Finished:
    assert finished.code == 0, finished.stderr
    return finished


def prepared(shop: Workshop, corpus: Path, domain: str, out: str) -> Path:
    words = ("--window", "16", "--holdout", "0", "--threads", "1", "--encoder", "contextual:model")
    done(shop.call("client", "prepare", corpus, "--domain", domain, "--out", out, *words))
    return shop / out


def test_from_a_model_to_a_decision(shop: Workshop) -> None:
    """Holders with halves of a corpus give the router of the pooled corpus, byte for byte; it tells domains apart."""
    saved = done(shop.call("encoder", "save", "contextual:model", "card", "--json")).json
    assert saved["kind"] == "contextual"
    listed = done(shop.call("encoder", "list", "--json")).json
    assert saved["fingerprint"] in [card["fingerprint"] for card in listed["converted"]]
    assert "contextual:NAME_OR_DIR" in listed["sources"]
    pooled = [prepared(shop, shop / "data" / f"{name}.train.jsonl", name, f"{name}.stats") for name in DOMAINS]
    halves = [
        prepared(shop, shop / f"{name}-{half}.jsonl", name, f"{name}-{half}.stats")
        for name in DOMAINS
        for half in (1, 2)
    ]
    done(shop.call("coordinator", "solve", *pooled, "--out", "pooled", "--encoder", "dir:card"))
    done(shop.call("coordinator", "solve", *halves, "--out", "federated"))
    assert contents(shop / "pooled")["router.safetensors"] == contents(shop / "federated")["router.safetensors"]

    text = sentences("law", 60)[-1]
    routed = done(shop.call("route", "pooled", text, "--explain", "--json", "--model", "model")).json
    assert routed["best"] == "law"
    assert "".join(word["text"] for word in routed["explanation"]) == text
    measured = done(shop.call("evaluate", "pooled", "data", "--json")).json
    assert measured["accuracy"] > 80
    fitted = done(shop.call("coordinator", "calibrate", "pooled", "data", "--model", "model", "--json")).json
    assert fitted["texts"] == 24


@pytest.mark.parametrize("mode", [[], ["--clear"]])
def test_a_federation_is_simulated(shop: Workshop, mode: list[str]) -> None:
    """Holders find the model through its card."""
    words = ("simulate", "--data", "data", *mode, "--encoder", "contextual:model", "--json")
    result = done(shop.call(*words)).json
    assert result["accuracy"] > 80
    assert result["held_out"]["documents"] > 0


def test_audits_need_a_table(shop: Workshop) -> None:
    """One sentence each."""
    path = prepared(shop, shop / "law-1.jsonl", "law", "audited.stats")
    for words in (("client", "audit", path), ("audit", "--data", "data")):
        refused = shop.call(*words, "--encoder", "contextual:model")
        assert refused.code == 2
        assert "the audit works on an encoder's table of embeddings" in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--encoder", "contextual:nowhere/x"), "not on this machine and the model hub cannot be reached"),
        (("--encoder", "contextual:data"), "data has no config.json"),
        (("--encoder", "contextual:model", "--window", "120"), "reads 160 tokens at once"),
    ],
)
def test_what_cannot_be_prepared_is_one_sentence(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    """And nothing is written."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused = shop.call("client", "prepare", "law-1.jsonl", "--domain", "law", "--out", "no.stats", *words)
    assert refused.code == 2
    assert sentence in refused.stderr
    assert not (shop / "no.stats").exists()


def test_a_release_names_what_it_lacks(shop: Workshop, tmp_path: Path) -> None:
    """On a machine that has never seen the model."""
    stats = [prepared(shop, shop / f"{name}-1.jsonl", name, f"{name}-small.stats") for name in DOMAINS]
    done(shop.call("coordinator", "solve", *stats, "--out", "small"))
    refused = shop.run("route", "small", "a", RIDGEWAY_CACHE=str(tmp_path / "empty"))
    assert refused.code == 2
    assert "is not on this machine" in refused.stderr
    found = shop.call("route", "small", "a", "--json", "--model", "model", RIDGEWAY_CACHE=str(tmp_path / "empty"))
    assert json.loads(found.stdout)["tokens"] == 1
