"""Whole federations on one machine: the command, the dealing of corpora, and holders that fall away
in a round.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.round.holder import CLIENT_TOML, Holder
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import (
    DEFAULT,
    EQUAL_MASS,
    PRIVATE_ENCODER,
    Weighting,
)
from ridgeway.common.privacy.public_prior import make_prior, write_prior
from ridgeway.common.protocol.cohort import form_cohort
from ridgeway.common.routing.release import MANIFEST, ROUTER, load_release
from ridgeway.common.routing.router import router_of
from ridgeway.common.routing.sentence_table import NOISY_MARGIN
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.coordinator.round.federation import Federation, PrivacySettings
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.coordinator.solving.solve import RouterChoices, draft, sign
from ridgeway.simulations.corpora import Corpus
from ridgeway.simulations.simulated_federation import (
    STAGES,
    UNMASKED_STAGES,
    SimulatedFederation,
    choose_dropouts,
    create_simulated_federation,
    deal,
    open_epochs,
    run_in_memory,
    run_on_flower,
)
from tests.support.commands import Finished, Workshop
from tests.support.corpora_on_disk import (
    ALPHABETS,
    sentences,
    write_domains,
    write_jsonl,
)
from tests.support.flower_parts import local_grid, process_grid
from tests.support.making import contents
from tests.support.tiny import private_encoder, tiny_encoder

WIDTH = 16


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """An encoder and a folder of corpora, as `simulate --data` wants them."""
    save_encoder(tiny_encoder(WIDTH), tmp_path / "encoder")
    write_domains(tmp_path / "data", 60, 15)
    return Workshop(tmp_path)


def simulated_by(shop: Workshop, words: str, encoder: str = "") -> Finished:
    """`ridgeway simulate WORDS` on these corpora, to its end."""
    named = encoder or shop.encoder
    return shop.call("simulate --data data --encoder", named, *words.split())


def corpora() -> list[Corpus]:
    return [
        Corpus(domain, tuple(sentences(domain, 40)), tuple(sentences(domain, 50)[40:]))
        for domain in ALPHABETS
    ]


def ready(folder: Path, **options: Any) -> SimulatedFederation:
    """A federation of small corpora whose epochs are open."""
    encoder = f"dir:{folder.parent / 'encoder'}"
    make = private_encoder if options.get("mode") == "private" else tiny_encoder
    save_encoder(make(WIDTH), folder.parent / "encoder")
    simulated = create_simulated_federation(
        folder, corpora(), encoder=encoder, **options
    )
    assert list(open_epochs(simulated)) == list(simulated.nodes)
    return simulated


def copied(simulated: SimulatedFederation, folder: Path) -> SimulatedFederation:
    """The same holders with the same keys, sums and corpora; what they spend in the copy is spent
    there.
    """
    for part in ("coordinator", "holders"):
        shutil.copytree(simulated.folder / part, folder / part, symlinks=True)
    nodes = {
        name: folder / "holders" / home.name for name, home in simulated.nodes.items()
    }
    before = str((simulated.folder / "spending").resolve())
    after = str((folder / "spending").resolve())
    for home in nodes.values():
        settings = (home / CLIENT_TOML).read_text()
        (home / CLIENT_TOML).write_text(settings.replace(before, after))
    federation = Federation(
        folder / "coordinator", encoder=simulated.federation.encoder
    )
    return replace(simulated, folder=folder, federation=federation, nodes=nodes)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), data=st.data())
def test_dealing_gives_every_text_to_one_holder(
    sizes: list[int], data: st.DataObject
) -> None:
    """No text is lost or dealt twice, every holder has some, and there are as many holders as were
    asked for.
    """
    domains = [
        Corpus(f"d{index}", tuple(f"{index}-{number}" for number in range(size)), ())
        for index, size in enumerate(sizes)
    ]
    holders = data.draw(st.integers(len(domains), len(domains) * min(sizes)))
    dealt = deal(domains, holders)
    assert len(dealt) == holders
    assert all(texts for _, texts in dealt.values())
    texts = [text for _, dealt_texts in dealt.values() for text in dealt_texts]
    assert sorted(texts) == sorted(text for corpus in domains for text in corpus.train)
    assert all(
        text.startswith(domain[1:] + "-")
        for domain, dealt_texts in dealt.values()
        for text in dealt_texts
    )


@pytest.mark.parametrize(
    ("weighting", "holders"), [("tokens", 3), ("tokens", 7), ("equal", 3)]
)
def test_federated_equals_centralised(
    weighting: Weighting, holders: int, tmp_path: Path
) -> None:
    """Rounds in the clear and masked, files of sums that are added, and one machine with all text:
    the same bytes.
    """
    domains, routers = corpora(), set()
    modes: tuple[Mode, ...] = ("masked", "clear")
    for mode in modes:
        simulated = ready(
            tmp_path / mode, holders=holders, mode=mode, weighting=weighting
        )
        run_in_memory(simulated, no_watch)
        federation, release = simulated.federation, simulated.newest_release
        routers.add((release / ROUTER).read_bytes())
    choices = RouterChoices.of_manifest(load_release(release).manifest)
    texts, sampling = (
        {corpus.name: corpus.train for corpus in domains},
        federation.terms.sampling,
    )
    pooled = []
    for name, domain_texts in texts.items():
        path = write_jsonl(tmp_path / "text" / f"{name}.jsonl", domain_texts)
        job = PrepareJob((path,), name, sampling, DEFAULT.holdout, ("text",), 1)
        pooled.append(prepare(job, federation.encoder, tmp_path / "cache").prepared)
    opened = [
        (holder, holder.epoch(federation.terms))
        for holder in map(Holder, simulated.nodes.values())
    ]
    files = [holder.epochs.statistics(epoch) for holder, epoch in opened]
    for name, parts in (("pooled", pooled), ("added", files)):
        made = draft(parts, federation.encoder, choices)
        sign(made, federation.identity, tmp_path / name)
        routers.add((tmp_path / name / ROUTER).read_bytes())
    assert len(routers) == 1


def test_the_command_reports_what_programs_want_to_know(workshop: Workshop) -> None:
    """Accuracy, domains, confusion and timings as JSON; the release where it was asked for, and it
    routes.
    """
    done = simulated_by(workshop, "--out out --json").good
    assert set(done.json) >= set(
        "accuracy domains confusion order timings release holders engine".split()
    )
    assert done.json["accuracy"] == 100.0
    assert done.json["order"] == sorted(ALPHABETS)
    assert done.json["holders"] == 3
    loaded = load_release(workshop / "out")
    assert loaded.id == done.json["release"]
    assert loaded.manifest["evaluation"]["documents"] > 0
    assert done.json["mode"] == "masked"
    assert router_of(loaded).route(sentences("law", 1)[0]).domain == "law"


def test_several_holders_of_a_domain_and_one_that_is_away(workshop: Workshop) -> None:
    """Whoever is away is named, and the others make the release; a domain goes on with the holders
    it has left.
    """
    done = simulated_by(workshop, "--holders 7 --drop law-1 --json").good
    assert done.json["absent"] == ["law-1"]
    assert "absent    law-1" in done.stderr
    assert done.json["order"] == sorted(ALPHABETS)
    gone = simulated_by(workshop, "--drop law --json --clear")
    assert gone.json["order"] == ["code", "medicine"]


@pytest.mark.parametrize("sums", ["columns", "full"])
def test_a_private_round_needs_one_option(
    workshop: Workshop, private_sentences: None, sums: str
) -> None:
    """The release says what it promises, and with much text for the noise its router routes. It is
    a cascade, whose table leaves more to the sentence encoder than that of exact sums.
    """
    for domain in ALPHABETS:
        write_jsonl(workshop / "data" / f"{domain}.train.jsonl", sentences(domain, 600))
    public = [text for domain in ALPHABETS for text in sentences(domain, 75)[60:]]
    write_prior(make_prior(private_encoder(WIDTH), public), workshop / "prior")
    save_encoder(private_encoder(WIDTH), workshop / "private")
    words = "--private --epsilon 8 --prior prior --out out --json"
    named = "" if sums == "columns" else f" --sums {sums}"
    done = simulated_by(workshop, words + named, "dir:private").good
    assert done.json["mode"] == "private"
    manifest = load_release(workshop / "out").manifest
    assert manifest["privacy"]["mode"] == sums
    assert manifest["cascade"]["margin"] == NOISY_MARGIN
    assert done.json["accuracy"] > 90


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--private --prior nowhere --work new",
            "there is no prior nowhere",
        ),
        (
            "--private --clear",
            "--private and --clear exclude each other; give one",
        ),
        (
            "--private --sums rows",
            "there is no privacy mode 'rows'; use columns or full",
        ),
        ("--private --epsilon 0", "ε must be above 0 and at most 20, not 0"),
        ("--epsilon 1", "--epsilon needs --private: other rounds have no noise"),
        (
            "--clear --sums full --prior p",
            "--sums and --prior needs --private",
        ),
        ("--holders 2", "3 domains need at least as many holders, not 2"),
        ("--holders 1000", "too few for"),
        ("--holders 20", "would have 8 documents, and a holder needs 10"),
        ("--drop nobody", "there is no holder 'nobody' to drop"),
        ("--engine ray", "there is no engine 'ray'"),
        ("--data nowhere", "nowhere holds 0 files"),
        ("--work data", "data already exists and is not empty"),
        ("--out data", "already contains other files"),
        ("--drop law --drop code --clear", "needs two domains"),
        ("--drop law", "2 holders can take part, but a round under masks needs 3"),
        ("--drop-rate 1", "a drop rate lies between 0 and 1"),
    ],
)
def test_bad_input_is_one_sentence(
    workshop: Workshop, words: str, sentence: str
) -> None:
    """A non-zero exit, one line of why, and nothing written."""
    before = set(workshop.folder.rglob("*"))
    last = simulated_by(workshop, words).refusal
    assert last.startswith("ridgeway: ")
    assert sentence in last
    assert set(workshop.folder.rglob("*")) <= before


def test_a_private_round_without_sentences_is_refused_before_anything_is_written(
    workshop: Workshop,
) -> None:
    """The sentence names an encoder that can be used, and the folder of the federation does not
    come to be.
    """
    encoder = f"{workshop.encoder}+words"
    done = simulated_by(workshop, "--private --work new", encoder)
    assert "runs of letters and USE sentence features" in done.refusal
    assert f"--encoder {PRIVATE_ENCODER}" in done.refusal
    assert not (workshop / "new").exists()


def test_holders_in_processes_give_the_very_release_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, also where one falls away in the middle."""
    simulated = ready(tmp_path / "one", holders=6)
    other = copied(simulated, tmp_path / "other")
    gone = {next(iter(simulated.nodes)): 2}
    run_in_memory(simulated, no_watch, gone)
    monkeypatch.setattr(
        local_grid,
        "process_grid",
        lambda app, nodes, processes: process_grid(app, nodes, 2),
    )
    run_in_memory(other, no_watch, gone)
    assert contents(simulated.newest_release) == contents(other.newest_release)


def test_epochs_that_processes_open_hold_the_same_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many holders are shared out over processes; what stands ready is what one process makes,
    under other names.
    """
    one = ready(tmp_path / "one")
    other = copied(one, tmp_path / "other")
    monkeypatch.setattr("ridgeway.simulations.simulated_federation.MANY_HOLDERS", 1)
    assert list(open_epochs(other)) == list(other.nodes)
    for name in one.nodes:
        first, second = Holder(one.nodes[name]), Holder(other.nodes[name])
        before, after = (
            first.epoch(one.federation.terms),
            second.epoch(other.federation.terms),
        )
        assert before.name != after.name
        assert (
            first.epochs.statistics(before).content
            == second.epochs.statistics(after).content
        )


@pytest.mark.parametrize("mode", ["masked", "clear"])
def test_nothing_private_reaches_the_coordinator(mode: Mode, tmp_path: Path) -> None:
    """No word of a text and no path of a corpus stands in anything the coordinator keeps."""
    simulated = ready(tmp_path / "work", mode=mode)
    run_in_memory(simulated, no_watch)
    kept = b"".join(
        path.read_bytes()
        for path in simulated.federation.folder.rglob("*")
        if path.is_file()
    )
    assert len(kept) > 10_000
    for domain in ALPHABETS:
        for text in sentences(domain, 40):
            assert text[10:40].encode() not in kept
    assert b"corpora" not in kept
    assert json.dumps(str(tmp_path)).strip('"').encode() not in kept.replace(
        f"dir:{tmp_path}".encode(), b""
    )


# Holders that fall away


MEMBERS = {"code-1", "code-2", "law-1", "law-2", "medicine"}
"""Five, of whom four must be left."""
HOLDERS = st.lists(st.text("abc123", min_size=1), unique=True, max_size=40)
BEFORE_SHARING, AFTER_SHARING, AFTER_SENDING, BEFORE_OPENING = STAGES


def five_holders(folder: Path, **options: Any) -> SimulatedFederation:
    """Five holders of three domains, whose epochs are open."""
    simulated = ready(folder / "work", holders=5, **options)
    assert set(simulated.nodes) == MEMBERS
    return simulated


@pytest.fixture
def prior(tmp_path: Path, private_sentences: None) -> Path:
    public = [text for corpus in corpora() for text in corpus.test]
    write_prior(make_prior(private_encoder(WIDTH), public), tmp_path / "prior")
    return tmp_path / "prior"


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedFederation:
    return five_holders(tmp_path)


def members_of(simulated: SimulatedFederation) -> set[str]:
    """Whose sums the newest release is made of."""
    newest = simulated.federation.newest
    assert newest is not None
    return {member.name for member in newest.members}


def absences(simulated: SimulatedFederation) -> dict[str, str]:
    """Where the coordinator first missed whom."""
    missed: dict[str, str] = {}
    for entry in simulated.federation.ledger.journal.entries("absent"):
        for name in entry.facts["names"]:
            missed.setdefault(name, entry.facts["step"])
    return missed


def opened(simulated: SimulatedFederation) -> dict[str, list[str]]:
    """Which sums every holder has helped to open."""
    return {
        name: [entry.facts["lot"] for entry in Holder(home).journal.entries("opened")]
        for name, home in simulated.nodes.items()
    }


# Who dropouts, and when


@given(
    names=HOLDERS,
    rate=st.floats(0, 1, exclude_max=True),
    order=st.randoms(),
)
def test_the_same_holders_fall_at_the_same_stages_in_every_run(
    names: list[str], rate: float, order: Any
) -> None:
    """As many as the rate says, whatever order they are named in, and spread evenly over the
    stages.
    """
    dropouts = choose_dropouts(names, rate)
    assert len(dropouts) == round(rate * len(names))
    assert dropouts.keys() <= set(names)
    shuffled = list(names)
    order.shuffle(shuffled)
    assert choose_dropouts(shuffled, rate) == dropouts
    stages = Counter(dropouts.values())
    assert stages.keys() <= STAGES.keys()
    assert max(stages.values(), default=0) - min(map(stages.__getitem__, STAGES)) <= 1


@given(
    names=HOLDERS,
    rates=st.tuples(*[st.floats(0, 0.99)] * 2),
)
def test_whoever_falls_at_a_rate_falls_at_a_greater_one_too(
    names: list[str], rates: tuple[float, float]
) -> None:
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
    """As many as must be left are left. Whoever had signed is in the sum; whoever had not leaves
    its domain lighter.
    """
    run_in_memory(simulated, no_watch, {"law-2": stage})
    assert members_of(simulated) == (MEMBERS if counted else MEMBERS - {"law-2"})
    assert absences(simulated)["law-2"] == step
    manifest = load_release(simulated.newest_release).manifest
    law = EQUAL_MASS if counted else EQUAL_MASS // 2
    assert manifest["masses"] == {
        "code": EQUAL_MASS,
        "law": law,
        "medicine": EQUAL_MASS,
    }
    assert manifest["evaluation"]["documents"] > 0
    assert opened(simulated) == {
        name: [] if name == "law-2" else ["statistics", "counts"] for name in MEMBERS
    }


@pytest.mark.parametrize(
    ("stage", "step", "counted"),
    [
        ("before sending", "collect", False),
        ("before counting", "evaluate", True),
        ("before the delivery", "deliver", True),
    ],
)
def test_a_private_round_goes_on_without_a_holder_that_falls_at_any_stage(
    tmp_path: Path, prior: Path, stage: str, step: str, counted: bool
) -> None:
    """Whoever had sent is in the total; the others of its domain count for it."""
    simulated = five_holders(tmp_path, mode="private", prior=prior)
    answers = {words: number for number, words in UNMASKED_STAGES.items()}
    run_in_memory(simulated, no_watch, {"law-2": answers[stage]})
    assert members_of(simulated) == (MEMBERS if counted else MEMBERS - {"law-2"})
    assert absences(simulated)["law-2"] == step
    assert not (simulated.nodes["law-2"] / "releases" / "0001").exists()
    assert (simulated.nodes["law-1"] / "releases" / "0001").exists()


def test_the_command_tells_who_will_fall(workshop: Workshop) -> None:
    """Two of seven holders may fall, each at its stage; with three the round fails in one
    sentence.
    """
    done = simulated_by(workshop, "--holders 7 --json --drop-rate 0.3").good
    assert len(done.json["fallen"]) == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("will fall")]
    for words in (*done.json["fallen"], "before sharing", "after sharing"):
        assert any(words in line for line in lines)
    assert done.json["accuracy"] == 100.0
    failed = simulated_by(workshop, "--holders 7 --json --drop-rate 0.43")
    assert (failed.code, failed.stdout) == (2, "")
    assert "of 7 members" in failed.stderr.splitlines()[-1]


# Flower's engine


def without_counts(release: Path) -> dict[str, Any]:
    """What a release holds, without the counts, which every round noises afresh, and what follows
    from them.
    """
    manifest = json.loads((release / MANIFEST).read_bytes())
    counted = {"evaluation", "confidence", "privacy", "signature"}
    return {
        **contents(release),
        MANIFEST: {key: manifest[key] for key in set(manifest) - counted},
    }


def test_both_engines_give_the_same_private_release_without_a_holder_that_fell(
    tmp_path: Path, prior: Path
) -> None:
    """On Flower's simulation engine a holder falls after sharing as it does in this process: the
    router is the same.

    The others end the round as if nobody had fallen: the release, its signature with it, is what
    each of them holds. What a holder has noised once leaves again as it is: the same vectors.
    """
    simulated = five_holders(
        tmp_path, mode="private", privacy=PrivacySettings(sums="full"), prior=prior
    )
    federation = simulated.federation
    members = {
        holder.key: holder.domain
        for holder in federation.ledger.standing().active.values()
    }
    cohort = form_cohort(federation.terms, members)
    for holder in map(Holder, simulated.nodes.values()):
        holder.noisy(holder.epoch(federation.terms), federation.privacy).shared_sums(
            len(members), cohort.id
        )
    dropouts = {"law-2": AFTER_SHARING}
    folder = tmp_path / "flower"
    other = copied(simulated, folder)
    run_in_memory(simulated, no_watch, dropouts)
    run_on_flower(other, no_watch, dropouts)
    ours, theirs = simulated.newest_release, other.newest_release
    assert without_counts(ours) == without_counts(theirs)
    one, two = (played.federation.ledger for played in (simulated, other))
    assert one.total(one.standing().totals[-1]).equals(
        two.total(two.standing().totals[-1])
    )
    for engine, release in ((simulated, ours), (other, theirs)):
        assert absences(engine)["law-2"] == "seal"
        assert opened(engine)["law-2"] == []
        assert members_of(engine) == MEMBERS - {"law-2"}
        stayed = [home for name, home in engine.nodes.items() if name != "law-2"]
        assert [
            contents(home / "releases" / "0001") == contents(release) for home in stayed
        ] == [True] * 4
        assert [len(Holder(home).account.expenses()) for home in stayed] == [2] * 4
        assert engine.federation.ledger.verify()["totals"] == 1
        assert not (engine.nodes["law-2"] / "releases" / "0001").exists()
        assert Journal(engine.nodes["law-2"] / "journal.db").entries()
