"""What people see of modes and budgets: what they agree to, what the next round costs, what was
spent.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from ridgeway.client.cli import folder_commands
from ridgeway.client.cli.holder_commands import agreed_invitation
from ridgeway.client.round.epochs import SignedTotal
from ridgeway.client.round.holder import PRIOR, Holder
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.privacy.public_prior import make_prior, read_prior, write_prior
from ridgeway.common.text.encoder_files import find_encoder
from tests.support.commands import Finished, Workshop, workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences

pytestmark = pytest.mark.usefixtures("private_sentences")

ACCEPT = "client accept law --invite co/invite"


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A coordinator whose rounds are private, with an invitation."""
    made = workshop(tmp_path)
    assert make_coordinator(made, "co", made.private_encoder).good
    make_public_prior(made, 30)
    invite(made)
    return made


def make_coordinator(shop: Workshop, name: str, encoder: str) -> Finished:
    words = f"coordinator init {name} --listen 127.0.0.1:9443 --encoder"
    return shop.call(words, encoder)


def make_public_prior(shop: Workshop, texts: int) -> None:
    public = [text for name in ALPHABETS for text in sentences(name, texts)]
    prior = make_prior(find_encoder(shop.private_encoder), public)
    write_prior(prior, shop / "co" / PRIOR)


def invite(shop: Workshop, mode: str = "private", epsilon: float = 1.0) -> None:
    """An invitation to rounds of a mode."""
    path = shop / "co" / "coordinator.toml"
    lines = [
        f'mode = "{mode}"' if line.startswith("mode =") else line
        for line in path.read_text().splitlines()
    ]
    lines = [
        f"epsilon = {epsilon}" if line.startswith("epsilon =") else line
        for line in lines
    ]
    path.write_text("\n".join(lines))
    shop.do("coordinator invite co")


def init(shop: Workshop, *more: str) -> Finished:
    words = "client init law --invite co/invite --domain law --corpus law.jsonl"
    return shop.call(f"{words} --encoder", shop.private_encoder, *more)


def sentence(done: Finished) -> str:
    """The one sentence that a command that fails says."""
    assert done.code == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    return " ".join(done.stderr.split())


# Agreeing


def test_a_holder_accepts_private_rounds_and_hears_what_they_mean(
    shop: Workshop,
) -> None:
    """The mode, its sentence, the limits; the shared file of expenses has an absolute path; the
    prior came along.
    """
    said = " ".join(init(shop).good.stderr.split())
    assert f"private rounds {MODE_SENTENCES['private']}" in said
    assert "at most ε 1 per round" in said and "4 in all" in said
    settings = Holder(shop / "law").settings
    policy = settings.policy
    assert (policy.modes, policy.weightings) == (("private",), ("equal",))
    assert (policy.max_round_epsilon, policy.max_epsilon) == (1.0, 4.0)
    assert settings.spending is not None and Path(settings.spending).is_absolute()
    assert (
        read_prior(shop / "law" / PRIOR).fingerprint
        == read_prior(shop / "co" / PRIOR).fingerprint
    )


@pytest.mark.parametrize("mode", ["masked", "clear"])
def test_another_mode_is_refused_until_it_is_accepted(
    shop: Workshop, mode: str
) -> None:
    """In one sentence that says what it means and which option accepts it."""
    invite(shop, mode)
    refused = sentence(init(shop))
    meaning = MODE_SENTENCES[mode]  # type: ignore[index]
    assert (
        f"the invitation is to {mode} rounds ({meaning})" in refused
        and f"--accept-mode {mode}" in refused
    )
    assert not (shop / "law").exists()
    facts = init(shop, "--accept-mode", mode, "--json").good.json
    assert (facts["mode"], facts["means"], facts["accepted"]) == (mode, meaning, [mode])


def test_several_modes_can_be_accepted_and_none_that_is_not_there(
    shop: Workshop,
) -> None:
    """In whatever order they are given."""
    refused = sentence(init(shop, "--accept-mode", "loud"))
    assert (
        "there is no mode 'loud' for --accept-mode; there are private, masked, clear"
        in refused
    )
    assert init(shop, "--accept-mode", "masked", "--accept-mode", "private").good
    assert Holder(shop / "law").settings.policy.modes == ("private", "masked")


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--max-round-epsilon", "0.5"), "have ε 1, and you allow 0.5 per round"),
        (("--max-round-epsilon", "0"), "--max-round-epsilon is an ε above 0, not 0"),
        (("--max-epsilon", "-1"), "--max-epsilon is an ε above 0, not -1"),
        (("--max-epsilon", "nan"), "--max-epsilon is an ε above 0, not nan"),
    ],
)
def test_limits_that_the_invitation_breaks_or_that_are_none_are_one_sentence(
    shop: Workshop, words: tuple[str, ...], refused: str
) -> None:
    assert refused in sentence(init(shop, *words))
    assert not (shop / "law").exists()


def test_an_invitation_that_costs_more_than_usual_must_be_allowed(
    shop: Workshop,
) -> None:
    """Nobody agrees to an ε of 8 by taking an invitation up."""
    invite(shop, epsilon=8.0)
    assert "have ε 8, and you allow 1 per round" in sentence(init(shop))
    assert init(shop, "--max-round-epsilon", "8", "--max-epsilon", "inf").good
    policy = Holder(shop / "law").settings.policy
    assert (policy.max_round_epsilon, policy.max_epsilon) == (8.0, float("inf"))


def test_on_a_terminal_the_limits_are_asked_for(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With proposals; what an option says is not asked."""
    asked: list[tuple[str, float]] = []

    def prompt(words: str, default: float, **_: Any) -> float:
        asked.append((words, default))
        return 2.5

    monkeypatch.setattr(
        sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})()
    )
    monkeypatch.setattr(typer, "prompt", prompt)
    terms = agreed_invitation(shop / "co" / "invite").terms
    assert folder_commands._budget(None, 3.0, terms, asks=True) == {
        "max_round_epsilon": 2.5,
        "max_epsilon": 3.0,
    }
    assert [default for _, default in asked] == [1.0]
    assert folder_commands._budget(None, None, terms, asks=False) == {
        "max_round_epsilon": 1.0,
        "max_epsilon": 4.0,
    }
    assert len(asked) == 1


def test_an_invitation_without_its_prior_is_refused(shop: Workshop) -> None:
    """Or with another one: documents would be bounded by what nobody agreed to."""
    (shop / "co" / "invite" / PRIOR).unlink()
    assert "is not the public prior of the invitation" in sentence(init(shop))


# Opening an epoch


def test_a_holder_hears_what_a_round_costs_before_there_is_one(shop: Workshop) -> None:
    """The epoch, documents, what changed, the cost, the mode with its sentence; nothing is paid by
    that.
    """
    assert init(shop).good
    said = " ".join(shop.do("client ready law").stderr.split())
    epoch = Holder(shop / "law").epochs.current()
    assert epoch is not None
    assert f"epoch {epoch.name[:12]}" in said
    assert "cost ε 1 for the next round, ε 1 of 4 afterwards" in said
    assert f"mode private {MODE_SENTENCES['private']}" in said
    made = shop.do("client ready law --json").json
    assert (made["mode"], made["documents"], made["changed"]) == ("private", 20, 0)
    assert made["samples"] + made["held_out"] == 20
    cost = made["cost"]
    assert (cost["epsilon"], cost["spent"], cost["allowed"], cost["warning"]) == (
        1.0,
        0.0,
        4.0,
        "",
    )
    assert 0.99 < cost["afterwards"] <= 1.0
    status = shop.do("client status law --json").json
    assert (status["privacy"]["spent"], status["privacy"]["outputs"]) == (0.0, [])
    assert status["epoch"] == {"name": made["epoch"], "documents": 20, "used": False}


def test_exact_sums_are_said_to_cost_infinity_and_what_two_totals_tell(
    shop: Workshop,
) -> None:
    """After an epoch that is in a total, a second one needs many changes, or the owner's explicit
    word. A part of the corpus opens none.
    """
    invite(shop, "masked")
    assert init(shop, "--accept-mode", "masked").good
    part = shop.do("client ready law --part 1/1 --json").json
    assert part == {"part": 1, "of": 1, "documents": 20}
    assert Holder(shop / "law").epochs.current() is None
    first = shop.do("client ready law").stderr
    assert "exact sums cost ε = ∞" in first and "comparing" not in first
    holder = Holder(shop / "law")
    epoch = holder.epochs.current()
    assert epoch is not None
    holder.totals.sign(
        SignedTotal("statistics", "terms", epoch.name, {"me": epoch.name}),
        "session",
        paid=False,
    )
    holder.account.pay(
        holder.account.expense(epoch.name, "statistics", "masked", None, epoch.holdout)
    )
    refused = sentence(shop.call("client ready law"))
    assert "0 documents changed since" in refused and "--new-epoch" in refused
    second = shop.do("client ready law --new-epoch").stderr
    assert "the difference between the last total and the next reveals" in second
    assert "0 changed documents" in second
    status = shop.do("client status law").stderr
    assert "ε ∞" in status and "1 exact output" in status


def test_join_opens_the_first_epoch_and_no_other(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so, with what a round will cost; then it runs as ever."""
    runs: list[Path] = []
    monkeypatch.setattr(
        "ridgeway.client.cli.holder_commands.run",
        lambda settings, *_: runs.append(settings.folder),
    )
    monkeypatch.setattr(
        "ridgeway.client.deploy.notices.NoticeWatch._run", lambda self: None
    )
    assert init(shop).good
    first = shop.do("client join law").stderr
    assert "no epoch is open yet; opening the first one" in first
    assert "ε 1 for the next round" in first
    epoch = Holder(shop / "law").epochs.current()
    assert "epoch" not in shop.do("client join law").stderr and len(runs) == 2
    assert Holder(shop / "law").epochs.current() == epoch is not None


# Taking new terms up


def test_a_new_prior_and_new_terms_are_taken_from_an_invitation_of_the_pinned_key(
    shop: Workshop,
) -> None:
    """With what to do next; the same invitation again is nothing new."""
    assert init(shop).good
    make_public_prior(shop, 40)
    invite(shop, epsilon=0.5)
    news = shop.do(f"{ACCEPT} --json").json["news"]
    new = read_prior(shop / "co" / PRIOR).fingerprint
    assert read_prior(shop / "law" / PRIOR).fingerprint == new
    assert any(new[:12] in words for words in news)
    assert any("ridgeway client ready" in words for words in news)
    invited = json.loads((shop / "law" / "invite.json").read_text())
    assert invited["terms"]["privacy"]["epsilon"] == 0.5
    assert shop.do(f"{ACCEPT} --json").json["news"] == []


@pytest.mark.parametrize(
    ("mode", "epsilon", "words"),
    [("masked", 1.0, "masked rounds: exact"), ("private", 2.0, "ε")],
)
def test_terms_that_the_holder_has_not_agreed_to_are_not_taken(
    shop: Workshop, mode: str, epsilon: float, words: str
) -> None:
    """Neither another mode nor a higher cost: the owner changes client.toml first."""
    assert init(shop).good
    before = (shop / "law" / "invite.json").read_bytes()
    invite(shop, mode, epsilon)
    refused = sentence(shop.call(ACCEPT))
    assert words in refused and "change [policy]" in refused
    assert (shop / "law" / "invite.json").read_bytes() == before


def test_an_invitation_of_somebody_else_is_not_taken(shop: Workshop) -> None:
    """However well it is signed."""
    assert init(shop).good
    assert make_coordinator(shop, "other", shop.private_encoder).good
    shutil.copy(shop / "co" / PRIOR, shop / "other" / PRIOR)
    shop.do("coordinator invite other")
    refused = sentence(shop.call("client accept law --invite other/invite"))
    assert "not by the pinned coordinator" in refused


# Sentences of the operator


@pytest.mark.parametrize("wrong", ["epsilon", "prior"])
def test_what_an_operator_cannot_promise_is_one_sentence(
    shop: Workshop, wrong: str
) -> None:
    """An ε of nothing in the settings, or a damaged prior."""
    settings, prior = shop / "co/coordinator.toml", shop / "co" / PRIOR
    if wrong == "epsilon":
        settings.write_text(
            settings.read_text().replace("epsilon = 1.0", "epsilon = 0")
        )
    else:
        prior.write_bytes(prior.read_bytes()[:-1])
    done = shop.call("coordinator invite co")
    assert done.code == 2 and wrong in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("features", ["", "+words", "+sentence"])
def test_another_encoder_under_noise_is_one_sentence(
    tmp_path: Path, features: str
) -> None:
    """A federation without letters or without sentences hears which encoder to take."""
    made = workshop(tmp_path)
    done = make_coordinator(made, "other", made.encoder + features)
    assert "--encoder use+words+sentence" in done.refusal
