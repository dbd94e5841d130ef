"""Whole federations on one machine: the command, and the dealing of corpora."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.round.holder import Holder
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import DEFAULT, Weighting
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.privacy.public_prior import make_prior, write_prior
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.coordinator.solving.publish import RouterChoices, publish
from ridgeway.simulations import simulated_federation
from ridgeway.simulations.corpora import Corpus
from ridgeway.simulations.engines import run_in_memory
from ridgeway.simulations.simulated_federation import (
    SimulatedFederation,
    create_simulated_federation,
    deal,
    open_epochs,
)
from tests.support.commands import Workshop
from tests.support.copied_federation import copied
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.flower_parts import forked_grid, local_grid
from tests.support.making import contents
from tests.support.tiny import tiny_encoder

WIDTH = 16


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """An encoder and a folder of corpora, as `simulate --data` wants them."""
    save_encoder(tiny_encoder(WIDTH), tmp_path / "encoder")
    for domain in ALPHABETS:
        write_jsonl(tmp_path / "data" / f"{domain}.train.jsonl", sentences(domain, 60))
        write_jsonl(tmp_path / "data" / f"{domain}.test.jsonl", sentences(domain, 75)[60:])
    return Workshop(tmp_path)


def corpora() -> list[Corpus]:
    return [Corpus(domain, tuple(sentences(domain, 40)), tuple(sentences(domain, 50)[40:])) for domain in ALPHABETS]


def ready(folder: Path, **options: Any) -> SimulatedFederation:
    """A federation of small corpora whose epochs are open."""
    encoder = f"dir:{folder.parent / 'encoder'}"
    save_encoder(tiny_encoder(WIDTH), folder.parent / "encoder")
    simulated = create_simulated_federation(folder, corpora(), encoder=encoder, **options)
    assert list(open_epochs(simulated)) == list(simulated.nodes)
    return simulated


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), data=st.data())
def test_dealing_gives_every_text_to_one_holder(sizes: list[int], data: st.DataObject) -> None:
    """No text is lost or dealt twice, every holder has some, and there are as many holders as were asked for."""
    found = [
        Corpus(f"d{place}", tuple(f"{place}-{each}" for each in range(size)), ()) for place, size in enumerate(sizes)
    ]
    holders = data.draw(st.integers(len(found), len(found) * min(sizes)))
    dealt = deal(found, holders)
    assert len(dealt) == holders
    assert all(texts for _, texts in dealt.values())
    texts = [text for _, own in dealt.values() for text in own]
    assert sorted(texts) == sorted(text for each in found for text in each.train)
    assert all(text.startswith(domain[1:] + "-") for domain, own in dealt.values() for text in own)


@pytest.mark.parametrize(("weighting", "holders"), [("tokens", 3), ("tokens", 7), ("equal", 3)])
def test_federated_equals_centralised(weighting: Weighting, holders: int, tmp_path: Path) -> None:
    """Rounds in the clear and masked, files of sums that are added, and one machine with all text: the same bytes."""
    found, routers = corpora(), set()
    modes: tuple[Mode, ...] = ("masked", "clear")
    for mode in modes:
        simulated = ready(tmp_path / mode, holders=holders, mode=mode, weighting=weighting)
        run_in_memory(simulated, no_watch)
        federation = simulated.federation
        assert federation.newest is not None
        release = federation.release_folder(federation.newest.number)
        routers.add((release / ROUTER).read_bytes())
    choices = RouterChoices.of_manifest(load_release(release).manifest)
    texts, sampling = {each.name: each.train for each in found}, federation.terms.sampling
    pooled = []
    for name, own in texts.items():
        path = write_jsonl(tmp_path / "text" / f"{name}.jsonl", own)
        job = PrepareJob((path,), name, sampling, DEFAULT.holdout, ("text",), 1)
        pooled.append(prepare(job, federation.encoder, tmp_path / "cache").prepared)
    opened = [(holder, holder.epoch(federation.terms)) for holder in map(Holder, simulated.nodes.values())]
    files = [holder.epochs.statistics(epoch) for holder, epoch in opened]
    for name, parts in (("pooled", pooled), ("added", files)):
        publish(parts, federation.encoder, choices, federation.identity, tmp_path / name)
        routers.add((tmp_path / name / ROUTER).read_bytes())
    assert len(routers) == 1


def test_the_command_reports_what_programs_want_to_know(workshop: Workshop) -> None:
    """Accuracy, domains, confusion and timings as JSON; the release where it was asked for, and it routes."""
    done = workshop.call("simulate", "--data", "data", "--encoder", workshop.encoder, "--out", "out", "--json")
    assert done.code == 0, done.stderr
    assert set(done.json) >= {"accuracy", "domains", "confusion", "order", "timings", "release", "holders", "engine"}
    assert done.json["accuracy"] == 100.0
    assert done.json["order"] == sorted(ALPHABETS)
    assert done.json["holders"] == 3
    loaded = load_release(workshop / "out")
    assert loaded.id == done.json["release"]
    assert loaded.manifest["evaluation"]["documents"] > 0
    assert done.json["mode"] == "masked"
    assert router_of(loaded).route(sentences("law", 1)[0]).domain == "law"


def test_several_holders_of_a_domain_and_one_that_is_away(workshop: Workshop) -> None:
    """Whoever is away is named, and the others make the release; a domain goes on with the holders it has left."""
    words = ["simulate", "--data", "data", "--encoder", workshop.encoder, "--holders", "7", "--drop", "law-1", "--json"]
    done = workshop.call(*words)
    assert done.code == 0, done.stderr
    assert done.json["absent"] == ["law-1"]
    assert "absent    law-1" in done.stderr
    assert done.json["order"] == sorted(ALPHABETS)
    gone = workshop.call(
        "simulate", "--data", "data", "--encoder", workshop.encoder, "--drop", "law", "--json", "--clear"
    )
    assert gone.json["order"] == ["code", "medicine"]


@pytest.mark.parametrize("sums", ["columns", "full"])
def test_a_private_round_needs_one_option(workshop: Workshop, sums: str) -> None:
    """The release says what it promises, and with much text for the noise its router routes."""
    for domain in ALPHABETS:
        write_jsonl(workshop / "data" / f"{domain}.train.jsonl", sentences(domain, 600))
    write_prior(
        make_prior(tiny_encoder(WIDTH), [sentences(domain, 75)[60:] for domain in ALPHABETS]), workshop / "prior"
    )
    words = ["--private", "--data", "data", "--encoder", workshop.encoder, "--epsilon", "8", "--prior", "prior"]
    named = [] if sums == "columns" else ["--sums", sums]
    done = workshop.call("simulate", *words, *named, "--out", "out", "--json")
    assert done.code == 0, done.stderr
    assert done.json["mode"] == "private"
    assert load_release(workshop / "out").manifest["privacy"]["mode"] == sums
    assert done.json["accuracy"] > 90


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--private", "--prior", "nowhere", "--work", "new"], "there is no prior nowhere"),
        (["--private", "--clear"], "--private and --clear are two modes; name one of them"),
        (["--private", "--sums", "rows"], "private sums cannot be 'rows'; they are columns or full"),
        (["--private", "--epsilon", "0"], "ε must be above 0 and at most 20, not 0"),
        (["--epsilon", "1"], "give --private with --epsilon: other rounds have no noise"),
        (["--clear", "--sums", "full", "--prior", "p"], "give --private with --sums and --prior"),
        (["--holders", "2"], "3 domains need at least as many holders, not 2"),
        (["--holders", "1000"], "too few for"),
        (["--holders", "20"], "would have 8 documents, and a holder needs 10"),
        (["--drop", "nobody"], "there is no holder 'nobody' to drop"),
        (["--engine", "ray"], "there is no engine 'ray'"),
        (["--data", "nowhere"], "nowhere holds 0 files"),
        (["--work", "data"], "data exists already and is not empty"),
        (["--out", "data"], "in use by something that is not a release"),
        (["--drop", "law", "--drop", "code", "--clear"], "needs two domains"),
        (["--drop", "law"], "2 holders can take part, and a round under masks needs 3"),
        (["--drop-rate", "1"], "a drop rate lies between 0 and 1"),
    ],
)
def test_bad_input_is_one_sentence(workshop: Workshop, words: list[str], sentence: str) -> None:
    """A non-zero exit, one line of why, and nothing written."""
    before = sorted(workshop.folder.rglob("*"))
    named = [] if "--data" in words else ["--data", "data"]
    done = workshop.call("simulate", *named, "--encoder", workshop.encoder, *words)
    assert done.code == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ridgeway: ")
    assert sentence in last
    assert not done.stdout
    assert [path for path in sorted(workshop.folder.rglob("*")) if path not in before] == []


def test_a_private_round_with_words_is_refused_before_anything_is_written(workshop: Workshop) -> None:
    """The sentence names an encoder that can be used, and the folder of the federation does not come to be."""
    words = ["--data", "data", "--encoder", f"{workshop.encoder}+words", "--private", "--work", "new"]
    done = workshop.call("simulate", *words)
    assert done.code == 2 and "features of tokens alone" in done.stderr and "--encoder smollm2" in done.stderr
    assert not (workshop / "new").exists()


def test_holders_in_processes_give_the_very_release_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, also where one falls away in the middle."""
    simulated = ready(tmp_path / "one", holders=6)
    other = copied(simulated, tmp_path / "other")
    gone = {next(iter(simulated.nodes)): 2}
    run_in_memory(simulated, no_watch, gone)
    monkeypatch.setattr(local_grid, "forked_grid", lambda app, nodes, processes: forked_grid(app, nodes, 2))
    run_in_memory(other, no_watch, gone)
    assert contents(simulated.federation.release_folder(1)) == contents(other.federation.release_folder(1))


def test_epochs_that_processes_open_hold_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many holders are shared out over processes; what stands ready is what one process makes, under other names."""
    one = ready(tmp_path / "one")
    other = copied(one, tmp_path / "other")
    monkeypatch.setattr(simulated_federation, "MANY_HOLDERS", 1)
    assert list(open_epochs(other)) == list(other.nodes)
    for name in one.nodes:
        first, second = Holder(one.nodes[name]), Holder(other.nodes[name])
        before, after = first.epoch(one.federation.terms), second.epoch(other.federation.terms)
        assert before.name != after.name
        assert first.epochs.statistics(before).content == second.epochs.statistics(after).content


@pytest.mark.parametrize("mode", ["masked", "clear"])
def test_nothing_private_reaches_the_coordinator(mode: Mode, tmp_path: Path) -> None:
    """No word of a text and no path of a corpus stands in anything the coordinator keeps."""
    simulated = ready(tmp_path / "work", mode=mode)
    run_in_memory(simulated, no_watch)
    kept = b"".join(path.read_bytes() for path in simulated.federation.folder.rglob("*") if path.is_file())
    assert len(kept) > 10_000
    for domain in ALPHABETS:
        for text in sentences(domain, 40):
            assert text[10:40].encode() not in kept
    assert b"corpora" not in kept
    assert json.dumps(str(tmp_path)).strip('"').encode() not in kept.replace(f"dir:{tmp_path}".encode(), b"")
