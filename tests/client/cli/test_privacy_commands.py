"""What people see of private rounds: what they agree to, what the next one costs, what was spent, and sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.common.encoding.encoder_files import load_encoder
from ridgeway.common.privacy.public_prior import make_prior, write_prior
from tests.support.commands import Workshop, workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A coordinator whose rounds are private, and a holder that took its invitation up."""
    made = workshop(tmp_path)
    init = "coordinator", "init", "co", "--listen", "127.0.0.1:9443", "--encoder", made.encoder
    assert made.call(*init).code == 0
    encoder = load_encoder(tmp_path / "encoder")
    write_prior(make_prior(encoder, [sentences(name, 30) for name in ALPHABETS]), tmp_path / "co" / "prior.safetensors")
    change(tmp_path / "co" / "coordinator.toml", "[privacy]", 'mode = "none"', 'mode = "columns"')
    for words in (
        ("coordinator", "invite", "co"),
        *(("client", "init", "law", "--invite", "co/invite", "--domain", "law", "--corpus", "law.jsonl"),),
    ):
        done = made.call(*words, *(["--encoder", made.encoder] if words[0] == "client" else []))
        assert done.code == 0, done.stderr
    return made


def change(path: Path, after: str, old: str, new: str) -> None:
    """Change the first such words after some others."""
    text = path.read_text()
    before, found, rest = text.partition(after)
    assert old in rest
    path.write_text(before + found + rest.replace(old, new, 1))


def test_a_holder_hears_what_a_round_costs_before_there_is_one(shop: Workshop) -> None:
    """With the prior that came with the invitation; then what was spent, and a δ that promises nothing."""
    made = shop.call("client", "ready", "law", "--json")
    assert made.code == 0, made.stderr
    privacy = made.json["privacy"]
    assert (privacy["spent"], privacy["allowed"], privacy["epsilon"], privacy["warning"]) == (0.0, 8.0, 1.0, "")
    assert 0.99 < privacy["next"] <= 1.0
    shown = shop.call("client", "ready", "law")
    assert "ε 1 for a round now" in shown.stderr and "0 of 8 are spent" in shown.stderr
    status = shop.call("client", "status", "law", "--json").json["privacy"]
    assert (status["spent"], status["allowed"], status["vectors"]) == (0.0, 8.0, [])
    assert 'privacy = "columns"' in (shop.folder / "law" / "client.toml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--privacy", "columns", "--epsilon", "0"), "ε must be above 0 and at most 20, not 0"),
        (("--privacy", "columns", "--epsilon", "-1"), "ε must be above 0"),
        (("--privacy", "columns", "--epsilon", "1000"), "8 is weak"),
        (("--privacy", "columns", "--delta", "0.5"), "δ must lie between"),
        (("--privacy", "rows"), "there is no privacy 'rows'"),
    ],
)
def test_what_cannot_be_promised_is_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    done = Workshop(tmp_path).call("simulate", *words)
    assert done.code == 2 and sentence in done.stderr and len(done.stderr.splitlines()) <= 3


def test_settings_that_cannot_be_are_one_sentence(shop: Workshop) -> None:
    change(shop.folder / "co" / "coordinator.toml", "[privacy]", "epsilon = 1.0", "epsilon = 0")
    done = shop.call("coordinator", "status", "co")
    assert done.code == 2 and "epsilon" in done.stderr and "Traceback" not in done.stderr


def test_a_prior_of_another_encoder_is_one_sentence(shop: Workshop) -> None:
    path = shop.folder / "co" / "prior.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = shop.call("coordinator", "invite", "co")
    assert done.code == 2 and "prior" in done.stderr and "Traceback" not in done.stderr


def test_words_under_noise_are_one_sentence(tmp_path: Path) -> None:
    """A federation with features of words hears which encoder to take."""
    made = workshop(tmp_path)
    init = "coordinator", "init", "words", "--listen", "127.0.0.1:9443", "--encoder", f"{made.encoder}+words"
    assert made.call(*init).code == 0
    change(tmp_path / "words" / "coordinator.toml", "[privacy]", 'mode = "none"', 'mode = "columns"')
    done = made.call("coordinator", "invite", "words")
    assert done.code == 2 and "--encoder smollm2" in done.stderr and "Traceback" not in done.stderr
