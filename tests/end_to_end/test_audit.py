"""The audit as users run it: on one holder's file, on folders of text, and on what is no use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.common.text.table_encoder import with_words
from ridgeway.simulations.audit import AuditedHolder, attack_cohort, read_summed
from tests.support.commands import Finished, Workshop, command_line, listing, workshop
from tests.support.corpora_on_disk import ALPHABETS, job, sentences, write_jsonl
from tests.support.tiny import tiny_encoder

SHARES = set(
    "tokens rare found recovered rare_recovered exact precision chance".split()
)

NOISY_SHARES = set("buckets found recovered precision chance".split())


@pytest.fixture(scope="module")
def shop(module_path: Path) -> Workshop:
    """A workshop with sums over single tokens too: DOMAIN.one.stats, a tenth of the documents held
    out.
    """
    made = workshop(module_path)
    for domain in ALPHABETS:
        write_jsonl(made / "data" / f"{domain}.train.jsonl", sentences(domain, 40))
        words = ("--domain", domain, "--out", f"{domain}.one.stats")
        sampling = "--window 1 --holdout 0.1 --max-tokens 150"
        assert made.prepare(sampling, *words, f"{domain}.jsonl").good
    return made


def audit(shop: Workshop, *words: str | Path) -> Finished:
    return shop.do("audit --encoder", shop.encoder, *command_line(words))


def audit_under_noise(shop: Workshop, *words: str | Path) -> Finished:
    return shop.do("audit --encoder", shop.private_encoder, *command_line(words))


# One holder


def test_single_tokens_come_back_whole(shop: Workshop) -> None:
    """Held-out and cut-off text is not in the sums, and the truth counts neither: all that was
    summed is recovered.
    """
    report = audit(shop, "law.one.stats --corpus law.jsonl --json").json
    clear, alone = report["findings"]
    assert SHARES | {"view", "window", "max_tokens", "proven", "seconds"} == set(clear)
    assert clear["proven"]
    assert (
        clear["recovered"],
        clear["exact"],
        clear["precision"],
        clear["window"],
    ) == (1.0, 1.0, 1.0, 1)
    assert alone["view"] == "column of B alone"
    assert not alone["proven"]
    assert report["weighting_undone"]
    assert report["advice"].startswith(
        "Every token of this corpus and its exact count can be computed"
    )
    shown = audit(shop, "law.one.stats --corpus law.jsonl").stdout
    assert (
        "rare tokens: those that occur once or twice in what was summed" in shown
        and "100.0 %" in shown
    )


def test_words_beside_tokens_hide_no_token(tmp_path: Path) -> None:
    """Sums over single tokens and their words hold those over tokens alone, which give every count
    away.
    """
    encoder = with_words(tiny_encoder(width=16), WordFeatures(width=4))
    write_jsonl(tmp_path / "law.jsonl", [text.upper() for text in sentences("law", 40)])
    work = job(tmp_path / "law.jsonl", window=1)
    truth, summed = read_summed(work, encoder, [work.sampling])
    clear, alone = attack_cohort(
        [AuditedHolder("law", summed[work.sampling], truth)], 0, work.sampling, encoder
    )
    assert clear.proven
    assert clear.measures is not None
    assert (clear.measures.recovered, clear.measures.exact, alone.proven) == (
        1.0,
        1.0,
        False,
    )
    pair = [
        AuditedHolder(name, summed[work.sampling], truth) for name in ("law", "code")
    ]
    named = {
        finding.view
        for finding in attack_cohort(pair, 0, work.sampling, encoder)
        if finding.proven
    }
    assert named == {"clear statistics", "total of 2: union", "difference of totals"}


def test_windows_prove_nothing(shop: Workshop) -> None:
    """The advice speaks of frequent tokens, and no count is claimed to be proven."""
    report = audit(shop, "law.stats --corpus law.jsonl --json").json
    assert [finding["window"] for finding in report["findings"]] == [64, 64]
    assert not any(finding["proven"] for finding in report["findings"])
    assert report["findings"][0]["exact"] < 1
    assert report["advice"].startswith("These sums do not reveal the counts")


def test_without_the_corpus_the_tokens_are_shown(shop: Workshop) -> None:
    """What was found is in the holder's own terminal, the proof beside it; shares are left open."""
    done = audit(shop, "law.one.stats")
    assert re.search(
        r"clear statistics +windows? (of )?1\b.* +\d+ +– .* yes ", done.stdout
    )
    assert re.search(r"^most frequent: '[^']+' \d", done.stdout, re.MULTILINE)
    assert done.stdout.rstrip().endswith("prefer windows in a masked round.")
    report = audit(shop, "law.one.stats --json").json["findings"][0]
    assert set(report) == set("view window max_tokens found proven seconds".split())


# A cohort


def test_every_view_of_a_cohort(shop: Workshop) -> None:
    """Single tokens: the clear statistics, the union and the difference come back exactly, the
    column does not.
    """
    report = audit(shop, "--data data --windows 1 --holder law --json").json
    assert report["holder"] == "law"
    assert report["cohort"] == sorted(ALPHABETS)
    by_view = {finding["view"]: finding for finding in report["findings"]}
    assert list(by_view) == [
        "clear statistics",
        "column of B alone",
        "total of 3: union",
        "total of 3: called law",
        "difference of totals",
    ]
    for view in ("clear statistics", "total of 3: union", "difference of totals"):
        assert by_view[view]["proven"]
        assert by_view[view]["exact"] == 1
    assert (
        by_view["total of 3: union"]["tokens"] > by_view["clear statistics"]["tokens"]
    )
    assert (
        by_view["total of 3: called law"]["found"]
        < by_view["total of 3: union"]["found"]
    )
    assert by_view["total of 3: called law"]["precision"] > 0.7


def test_a_folder_of_text_is_audited_for_each_window(shop: Workshop) -> None:
    """Table on stdout, steps on stderr, five views a window."""
    done = audit(shop, "--data data --windows 8 --windows 1")
    assert done.stdout.startswith("holder ")
    rows = re.findall(r"^ (clear|column|total|difference) ", done.stdout, re.MULTILINE)
    assert len(rows) == 10
    assert done.stderr.count("attacked") == 10


# What is no use


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("audit nowhere", r"there is no statistics file nowhere"),
        ("audit law.jsonl", r"law\.jsonl is not a statistics file, or is corrupt"),
        ("audit data", r"there is no statistics file data"),
        (
            "audit --data data --corpus law.jsonl",
            r"--corpus is that of a statistics file",
        ),
        (
            "audit law.stats --data data",
            r"--data, --windows and --holder are for a cohort",
        ),
        ("audit law.stats --corpus nowhere", r"there is no file or folder nowhere"),
        ("audit law.stats --corpus code.jsonl", r"the statistics of 'law' have"),
        (
            "audit law.stats --corpus law.jsonl --text-field body",
            r"no field 'body'; its fields are text",
        ),
        ("audit law.stats --encoder dir:other", r"not with tiny \(.*\); use --encoder"),
        ("audit --data nowhere", r"there is no folder nowhere"),
        ("audit --data encoder", r"encoder has no file named DOMAIN\.train\.jsonl"),
        ("audit --data data --windows 0", r"window is 0"),
        ("audit --data data --windows some", r"'some' is not a valid integer"),
        (
            "audit --data data --holder art",
            r"there is no holder 'art'; there are code, law",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused(
    shop: Workshop, words: str, message: str
) -> None:
    """One sentence, exit code 2, nothing on stdout, and no file made."""
    if not (shop / "other").exists():
        save_encoder(tiny_encoder(seed=9), shop / "other")
    before = set(listing(shop.folder))
    usual = [] if "--encoder" in words else ["--encoder", shop.encoder]
    sentence = shop.call(words, *usual).refusal
    assert re.search(message, sentence), sentence
    assert {
        path
        for path in set(listing(shop.folder)) - before
        if not path.startswith(str(shop.cache))
    } == set()


# Under noise


@pytest.fixture(scope="module")
def public(shop: Workshop, private_sentences: None) -> Path:
    """A prior of the workshop's own text, and enough of it for two halves."""
    write_jsonl(shop / "more" / "law.train.jsonl", sentences("law", 120))
    shop.do("prior make data --out prior --encoder", shop.private_encoder)
    return shop / "prior"


@pytest.mark.parametrize("mode", ["columns", "full"])
def test_documents_under_noise_are_held_against_a_control(
    shop: Workshop, public: Path, mode: str
) -> None:
    """Both halves, chance, and membership beside what ε allows; in words and for programs."""
    words = ("--data more --epsilon 1 --privacy", mode, "--prior", public)
    report = audit_under_noise(shop, *words, "--json").json
    assert (report["domain"], report["privacy"], report["epsilon"]) == (
        "law",
        mode,
        1.0,
    )
    [finding, *_] = report["findings"]
    assert set(finding) == {"own", "control", "view"}
    assert set(finding["own"]) == NOISY_SHARES
    assert (
        report["membership_auc"]["worst_case"]
        < report["membership_auc"]["allowed"]
        < 0.74
    )
    assert (
        report["canaries"]["guesses"] == 20_000 and report["canaries"]["at_least"] < 1
    )
    shown = audit_under_noise(shop, *words, "--canaries", "0").stdout
    assert (
        "of the control" in shown
        and "allows 73.1 %" in shown
        and "canaries" not in shown
    )


def test_a_holder_audits_its_own_documents_under_noise(
    shop: Workshop, public: Path
) -> None:
    """The statistics file names domain and held-out share; the documents are read whole."""
    text = shop / "more" / "law.train.jsonl"
    assert shop.prepare(text, "--domain", "law", "--out", "more.stats").code == 0
    words = ("more.stats --epsilon 8 --json --corpus", text, "--prior", public)
    report = audit_under_noise(shop, *words).json
    assert report["domain"] == "law" and 20 <= report["documents"] < 100


def test_an_audit_under_noise_says_what_it_needs(shop: Workshop, public: Path) -> None:
    """One sentence each, and no traceback."""
    for words, sentence in (
        ("--data more --holder nobody --epsilon 1", "no holder 'nobody'"),
        ("law.stats --epsilon 1", "use --corpus"),
        ("law.stats --epsilon 99", "ε must be above 0"),
        ("law.stats --epsilon 1 --privacy none", "there is no privacy mode 'none'"),
        ("law.stats --epsilon 1 --prior law.stats", "not a prior"),
    ):
        usual = ("audit --encoder", shop.private_encoder, "--prior", public)
        assert sentence in shop.call(*usual, *words.split()).refusal
