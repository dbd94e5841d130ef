"""Routing with a contextual encoder: the model makes a small table for each prompt, and the rest is as ever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ridgeway.common.base.errors import EncoderError, ReleaseError
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.settings import DEFAULT, Confidence, Sampling, Selector
from ridgeway.common.encoding import transformer as running
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.routing.hidden_state_table import HiddenStateTable, compile_router
from ridgeway.common.routing.release import load_release
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.solving.publish import RouterChoices, calibrate_release, publish
from tests.support.corpora_on_disk import ALPHABETS, job, sentences, write_jsonl
from tests.support.making import contents, fixed_identity, sign_again
from tests.support.seeds import few_examples
from tests.support.tiny import LETTERS, SPECIAL
from tests.support.tiny_models import WIDTH, make_model, plain_states
from tests.support.tiny_models import model_folder as model_folder
from tests.support.tiny_models import tiny_model_encoder as tiny_model_encoder
from tests.support.waiting import MAX_WAIT_S

SAMPLING = Sampling(window=16)
DOMAINS = tuple(sorted(ALPHABETS))
SELECTORS = [Selector(), Selector("all"), Selector("entropy", 3)]
prompts = st.lists(st.text(LETTERS + "é", max_size=60) | st.just(SPECIAL) | st.just(""), max_size=5)


@pytest.fixture(scope="module")
def release(encoder: ContextualEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release over three domains, made of statistics files."""
    from ridgeway.client.sums.prepare import prepare

    work = tmp_path_factory.mktemp("release")
    parts = []
    for domain in DOMAINS:
        path = write_jsonl(work / f"{domain}.jsonl", sentences(domain, 40))
        made = prepare(job(path, window=16), encoder, work / "cache").prepared
        parts.append(Prepared(domain, made.encoder_name, made.fingerprint, made.sampling, made.statistics))
    choices = RouterChoices(DEFAULT.weighting, DEFAULT.ridge, False, Selector(), Confidence())
    publish(parts, encoder, choices, fixed_identity(), work / "out")
    return work / "out"


def weights(seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((WIDTH + 1, len(DOMAINS)))


def router_of(encoder: ContextualEncoder, selector: Selector) -> Router:
    return Router(DOMAINS, compile_router(encoder, SAMPLING, weights()), encoder.tokenizer, selector)


# What a decision is


def test_a_score_is_the_mean_of_the_logits_of_the_plain_model(folder: Path, encoder: ContextualEncoder) -> None:
    """Within the rounding of hidden states to the grid."""
    text = sentences("law", 1, 13)[0]  # one window
    ids = encoder.tokenizer.encode(text)
    states = plain_states(folder, ids.tolist()).numpy()
    expected = states.mean(axis=0) @ weights()[:-1] + weights()[-1]
    table, places = compile_router(encoder, SAMPLING, weights()).read(ids, np.array([len(ids)]))
    found = table.sums[places].mean(axis=0) * table.step
    assert np.abs(found - expected).max() <= encoder.scale * np.abs(weights()[:-1]).sum(axis=0).max()


@pytest.mark.parametrize("selector", SELECTORS)
@few_examples
@given(texts=prompts)
def test_many_prompts_are_routed_as_one_by_one(
    encoder: ContextualEncoder, selector: Selector, texts: list[str]
) -> None:
    """Bit for bit: what a prompt is routed with does not matter."""
    router = router_of(encoder, selector)
    assert router.route_many(texts) == [router.route(text) for text in texts]


@pytest.mark.parametrize("selector", SELECTORS)
def test_an_explanation_adds_up_to_the_margin(encoder: ContextualEncoder, selector: Selector) -> None:
    """Every word of the prompt stands there with its weight."""
    router = router_of(encoder, selector)
    text = sentences("law", 1, 40)[0]
    explanation = router.explain(text)
    assert explanation.decision == router.route(text)
    assert "".join(word.text for word in explanation.words) == text
    assert sum(word.weight for word in explanation.words) == pytest.approx(explanation.margin)


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_prompt_without_tokens_scores_all_domains_alike(encoder: ContextualEncoder, selector: Selector) -> None:
    """The empty prompt, and one of special tokens alone."""
    for text in ("", SPECIAL):
        decision = router_of(encoder, selector).route(text)
        assert decision.tokens == 0
        assert list(decision.scores.values()) == pytest.approx([1 / 3] * 3)


def test_a_state_that_no_step_can_count_says_as_much_as_32_bits_hold() -> None:
    """Nothing wraps around, and no error tells of the text."""
    wild = HiddenStateTable(np.ones((WIDTH + 1, 2)), 1.0, lambda ids: np.full((len(ids), WIDTH), 32767, dtype=np.int16))
    table, _ = wild.read(np.zeros(1, dtype=np.int32), np.array([1]))
    assert table.logits.min() > 2**30


# Releases


def test_a_release_holds_weights_and_no_table(release: Path, encoder: ContextualEncoder) -> None:
    """And what is needed to find and verify the model."""
    arrays = load_file(release / "router.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == {"weights": (WIDTH + 1, 3)}
    manifest = json.loads((release / "manifest.json").read_bytes())
    assert manifest["encoder"] == {
        "name": "local",
        "kind": "contextual",
        "fingerprint": encoder.fingerprint,
        "weights": encoder.weights,
        "rows": encoder.rows,
        "width": WIDTH,
        "scale": encoder.scale,
    }


def test_a_released_router_routes(release: Path) -> None:
    """Domains that differ in their letters are told apart, and a retired domain is never named again."""
    router = Router.load(release)
    tests = {domain: sentences(domain, 50)[40:] for domain in DOMAINS}
    for domain, texts in tests.items():
        assert sum(each.best == domain for each in router.route_many(texts)) >= 8
    kept = router.without("law")
    assert {each.best for each in kept.route_many(tests["law"])} <= {"code", "medicine"}
    voting = router.with_selector(Selector("entropy", 5))
    assert voting.route(tests["law"][0]).tokens == len(router.tokenizer.encode(tests["law"][0]))


def test_a_release_is_calibrated_and_signed_again(release: Path, tmp_path: Path) -> None:
    """Confidence is fitted on held-out text; the router's own files stay."""
    import shutil

    copy = shutil.copytree(release, tmp_path / "release")
    for domain in DOMAINS:
        write_jsonl(tmp_path / "data" / f"{domain}.test.jsonl", sentences(domain, 48)[40:])
    done = calibrate_release(copy, tmp_path / "data", ["text"], {}, fixed_identity())
    loaded = load_release(copy)
    assert loaded.confidence.calibrated
    assert loaded.id == done.release
    assert contents(copy)["router.safetensors"] == contents(release)["router.safetensors"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": 3.0}, "do not give the fingerprint"),
        ({"kind": "spiritual"}, "of kind 'spiritual'"),
        ({"weights": None}, "do not give the fingerprint"),
        ({"width": "wide"}, "cannot be used"),
    ],
)
def test_a_signed_manifest_that_does_not_fit_is_refused(
    release: Path, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    """Also one whose signature holds."""
    import shutil

    copy = shutil.copytree(release, tmp_path / "release")
    card = json.loads((copy / "manifest.json").read_bytes())["encoder"]
    sign_again(copy, fixed_identity(), {"encoder": {**card, **change}})
    with pytest.raises(ReleaseError, match=words):
        load_release(copy)


# Models


def test_the_model_is_named_when_it_is_not_here(
    release: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading a release needs no model; routing says what is missing, and takes no other."""
    monkeypatch.setattr(running, "_loaded", {})
    router = Router.load(release)
    with pytest.raises(EncoderError, match=r"is not on this machine; .* --model DIR"):
        router.route("a")
    with pytest.raises(EncoderError, match="has other weights"):
        Router.load(release, model=make_model(tmp_path / "other", seed=9)).route("a")
    found = Router.load(release, model=folder).route("a")
    assert Router.load(release).route("a") == found  # it is remembered


def test_without_torch_routing_names_the_extra(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And loading works."""
    monkeypatch.setattr(running, "_loaded", {})
    monkeypatch.setitem(sys.modules, "torch", None)
    router = Router.load(release)
    with pytest.raises(EncoderError, match=r"needs the package torch; install ridgeway\[contextual\]"):
        router.route("a")


def test_loading_a_release_imports_no_torch(release: Path) -> None:
    """Only the first prompt does."""
    code = (
        "import sys; from ridgeway import Router; Router.load(sys.argv[1]); "
        "print([name for name in ('torch', 'transformers', 'flwr', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, release], capture_output=True, text=True, timeout=MAX_WAIT_S)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_order_of_files_does_not_change_a_release(release: Path) -> None:
    """A manifest is canonical here too."""
    raw = (release / "manifest.json").read_bytes()
    assert canonical_json(json.loads(raw)) == raw
