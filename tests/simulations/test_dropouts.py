"""Holders that fall away in the middle of a simulated round: who, when, and what is left of the round."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.client.round.holder import Holder
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.privacy.public_prior import make_prior, write_prior
from ridgeway.common.protocol.cohort import form_cohort
from ridgeway.common.routing.release import MANIFEST, load_release
from ridgeway.coordinator.round.federation import PrivacySettings
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.simulations.corpora import Corpus
from ridgeway.simulations.dropouts import STAGES, UNMASKED_STAGES, choose_dropouts
from ridgeway.simulations.engines import run_in_memory, run_on_flower
from ridgeway.simulations.simulated_federation import (
    SimulatedFederation,
    create_simulated_federation,
    open_epochs,
)
from tests.support.commands import Workshop
from tests.support.copied_federation import copied
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.making import contents
from tests.support.tiny import tiny_encoder

WIDTH = 16
MEMBERS = {"code-1", "code-2", "law-1", "law-2", "medicine"}
"""Five, of whom four must be left."""
BEFORE_SHARING, AFTER_SHARING, AFTER_SENDING, BEFORE_OPENING = STAGES


def three_corpora() -> list[Corpus]:
    return [Corpus(name, tuple(sentences(name, 40)), tuple(sentences(name, 50)[40:])) for name in ALPHABETS]


def five_holders(folder: Path, **options: Any) -> SimulatedFederation:
    """Five holders of three domains, whose epochs are open."""
    save_encoder(tiny_encoder(WIDTH), folder / "encoder")
    encoder = f"dir:{folder / 'encoder'}"
    simulated = create_simulated_federation(folder / "work", three_corpora(), holders=5, encoder=encoder, **options)
    assert sorted(open_epochs(simulated)) == sorted(MEMBERS)
    return simulated


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedFederation:
    return five_holders(tmp_path)


def absences(simulated: SimulatedFederation) -> dict[str, str]:
    """Where the coordinator first missed whom."""
    missed: dict[str, str] = {}
    for entry in simulated.federation.ledger.journal.entries():
        if entry.kind == "absent":
            for name in entry.facts["names"]:
                missed.setdefault(name, entry.facts["step"])
    return missed


def opened(simulated: SimulatedFederation) -> dict[str, list[str]]:
    """Which sums every holder has helped to open."""
    return {
        name: [entry.facts["lot"] for entry in Holder(home).journal.entries() if entry.kind == "opened"]
        for name, home in simulated.nodes.items()
    }


# Who dropouts, and when


@given(
    names=st.lists(st.text("abc123", min_size=1), unique=True, max_size=40),
    rate=st.floats(0, 1, exclude_max=True),
    order=st.randoms(),
)
def test_the_same_holders_fall_at_the_same_stages_in_every_run(names: list[str], rate: float, order: Any) -> None:
    """As many as the rate says, whatever order they are named in, and spread evenly over the stages."""
    dropouts = choose_dropouts(names, rate)
    assert len(dropouts) == round(rate * len(names))
    assert dropouts.keys() <= set(names)
    shuffled = list(names)
    order.shuffle(shuffled)
    assert choose_dropouts(shuffled, rate) == dropouts
    stages = Counter(dropouts.values())
    assert stages.keys() <= STAGES.keys()
    assert max(stages.values(), default=0) - min((stages[stage] for stage in STAGES), default=0) <= 1


@given(
    names=st.lists(st.text("abc123", min_size=1), unique=True, max_size=40), rates=st.tuples(*[st.floats(0, 0.99)] * 2)
)
def test_whoever_falls_at_a_rate_falls_at_a_greater_one_too(names: list[str], rates: tuple[float, float]) -> None:
    """At the same stage: rates can be compared."""
    fewer, more = (choose_dropouts(names, rate) for rate in sorted(rates))
    assert fewer.items() <= more.items()


@pytest.mark.parametrize("rate", [-0.01, 1.0, 1.5, float("nan")])
def test_a_rate_that_leaves_nobody_is_refused(rate: float) -> None:
    """A part of the holders lies between none and all of them."""
    with pytest.raises(InputError, match="a drop rate lies between 0 and 1"):
        choose_dropouts(["law"], rate)


# What is left of the round


@pytest.mark.parametrize(
    ("stage", "step", "counted"),
    [
        (BEFORE_SHARING, "share", False),
        (AFTER_SHARING, "seal", False),
        (AFTER_SENDING, "confirm_sum", False),
        (BEFORE_OPENING, "open_sum", True),
    ],
)
def test_a_round_goes_on_without_a_holder_that_falls_at_any_stage(
    simulated: SimulatedFederation, stage: int, step: str, counted: bool
) -> None:
    """As many as must be left are left. Whoever had signed is in the sum; whoever had not leaves its domain lighter."""
    run_in_memory(simulated, no_watch, {"law-2": stage})
    newest = simulated.federation.newest
    assert newest is not None
    assert {member.name for member in newest.members} == (MEMBERS if counted else MEMBERS - {"law-2"})
    assert absences(simulated)["law-2"] == step
    manifest = load_release(simulated.federation.release_folder(1)).manifest
    law = EQUAL_MASS if counted else EQUAL_MASS // 2
    assert manifest["masses"] == {"code": EQUAL_MASS, "law": law, "medicine": EQUAL_MASS}
    assert manifest["evaluation"]["documents"] > 0
    assert opened(simulated) == {name: [] if name == "law-2" else ["statistics", "counts"] for name in MEMBERS}


@pytest.mark.parametrize(
    ("stage", "step", "counted"),
    [
        ("before sending", "collect", False),
        ("before counting", "evaluate", True),
        ("before the delivery", "deliver", True),
    ],
)
def test_a_private_round_goes_on_without_a_holder_that_falls_at_any_stage(
    tmp_path: Path, stage: str, step: str, counted: bool
) -> None:
    """Whoever had sent is in the total; the others of its domain count for it."""
    write_prior(make_prior(tiny_encoder(WIDTH), [each.test for each in three_corpora()]), tmp_path / "prior")
    simulated = five_holders(tmp_path, mode="private", prior=tmp_path / "prior")
    answers = {words: number for number, words in UNMASKED_STAGES.items()}
    run_in_memory(simulated, no_watch, {"law-2": answers[stage]})
    newest = simulated.federation.newest
    assert newest is not None
    assert {member.name for member in newest.members} == (MEMBERS if counted else MEMBERS - {"law-2"})
    assert absences(simulated)["law-2"] == step
    assert not (simulated.nodes["law-2"] / "releases" / "0001").exists()
    assert (simulated.nodes["law-1"] / "releases" / "0001").exists()


def test_the_command_tells_who_will_fall(tmp_path: Path) -> None:
    """Two of seven holders may fall, each at its stage; with three the round fails in one sentence."""
    save_encoder(tiny_encoder(WIDTH), tmp_path / "encoder")
    for domain in ALPHABETS:
        write_jsonl(tmp_path / "data" / f"{domain}.train.jsonl", sentences(domain, 60))
        write_jsonl(tmp_path / "data" / f"{domain}.test.jsonl", sentences(domain, 75)[60:])
    workshop = Workshop(tmp_path)
    words = ["simulate", "--data", "data", "--encoder", workshop.encoder, "--holders", "7", "--json"]
    done = workshop.call(*words, "--drop-rate", "0.3")
    assert done.code == 0, done.stderr
    assert len(done.json["fallen"]) == 2
    told = [line for line in done.stderr.splitlines() if line.startswith("will fall")]
    assert [name for name in done.json["fallen"] if not any(name in line for line in told)] == []
    assert [stage for stage in ("before sharing", "after sharing") if not any(stage in line for line in told)] == []
    assert done.json["accuracy"] == 100.0
    failed = workshop.call(*words, "--drop-rate", "0.43")
    assert (failed.code, failed.stdout) == (2, "")
    assert "of 7 members" in failed.stderr.splitlines()[-1]


# Flower's engine


def without_counts(release: Path) -> dict[str, Any]:
    """What a release holds, without the counts, which every round noises afresh, and the signature over them."""
    manifest = json.loads((release / MANIFEST).read_bytes())
    return {**contents(release), MANIFEST: {key: manifest[key] for key in set(manifest) - {"evaluation", "signature"}}}


def test_both_engines_give_the_same_private_release_without_a_holder_that_fell(tmp_path: Path) -> None:
    """On Flower's simulation engine a holder falls after sharing as it does in this process: the router is the same.

    The others end the round as if nobody had fallen: the release, its signature with it, is what each of them holds.
    What a holder has noised once leaves again as it is: the same vectors.
    """
    write_prior(make_prior(tiny_encoder(WIDTH), [each.test for each in three_corpora()]), tmp_path / "prior")
    simulated = five_holders(tmp_path, mode="private", privacy=PrivacySettings(sums="full"), prior=tmp_path / "prior")
    federation = simulated.federation
    members = {holder.key: holder.domain for holder in federation.ledger.standing().active.values()}
    cohort = form_cohort(federation.terms, members)
    for holder in map(Holder, simulated.nodes.values()):
        holder.noisy(holder.epoch(federation.terms), federation.privacy).shared_sums(len(members), cohort.id)
    dropouts = {"law-2": AFTER_SHARING}
    folder = tmp_path / "flower"
    other = copied(simulated, folder)
    run_in_memory(simulated, no_watch, dropouts)
    run_on_flower(other, no_watch, dropouts)
    ours, theirs = (each.federation.release_folder(1) for each in (simulated, other))
    assert without_counts(ours) == without_counts(theirs)
    one, two = (each.federation.ledger for each in (simulated, other))
    assert one.total(one.standing().totals[-1]).equals(two.total(two.standing().totals[-1]))
    for each, release in ((simulated, ours), (other, theirs)):
        assert absences(each)["law-2"] == "seal"
        assert opened(each)["law-2"] == []
        newest = each.federation.newest
        assert newest is not None
        assert {member.name for member in newest.members} == MEMBERS - {"law-2"}
        stayed = [home for name, home in each.nodes.items() if name != "law-2"]
        assert [contents(home / "releases" / "0001") == contents(release) for home in stayed] == [True] * 4
        assert [len(Holder(home).account.expenses()) for home in stayed] == [2] * 4
        assert each.federation.ledger.verify()["totals"] == 1
        assert not (each.nodes["law-2"] / "releases" / "0001").exists()
        assert Journal(each.nodes["law-2"] / "journal.db").entries()
