"""A holder's folder: settings that read back as they were written, sums that are weighted, and what
is refused.
"""

from __future__ import annotations

import math
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.deploy.holder_folder import create_holder, settings_text
from ridgeway.client.round.epochs import OPENED_EPOCH
from ridgeway.client.round.holder import CLIENT_TOML, Holder, HolderSettings
from ridgeway.client.round.policy import Policy
from ridgeway.common.base.errors import InputError, JournalError
from ridgeway.common.base.records import read_settings
from ridgeway.common.base.settings import EQUAL_MASS, Sampling
from ridgeway.common.protocol.cohort import Terms, form_cohort
from tests.support.making import refusing
from tests.support.simulated_federation import Parties, found, own_texts

digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
words = st.text(min_size=1, max_size=12)
names = st.text("abcxyzäß019_-.", max_size=10).map(lambda word: f"d{word}")
budgets = st.floats(1e-3, 1e3) | st.just(math.inf)
policies = st.builds(
    Policy,
    coordinator=digests,
    encoders=st.lists(digests, min_size=1, max_size=3).map(tuple),
    modes=st.lists(
        st.sampled_from(("private", "masked", "clear")), min_size=1, unique=True
    ).map(tuple),
    max_round_epsilon=budgets,
    max_epsilon=budgets,
    weightings=st.lists(st.sampled_from(("equal", "tokens")), max_size=2).map(tuple),
    sampling=st.builds(
        Sampling, window=st.integers(1, 1 << 16), max_tokens=st.integers(0, 1 << 40)
    ),
    min_cohort=st.integers(1, 1 << 20),
)


@st.composite
def settings(draw: st.DrawFn) -> HolderSettings:
    """Any settings that a holder's folder can have."""
    return HolderSettings(
        domain=draw(names),
        corpus=tuple(draw(st.lists(words, min_size=1, max_size=3))),
        text_field=draw(words),
        holdout=draw(st.floats(0, 1, exclude_max=True)),
        threads=draw(st.integers(0, 1 << 20)),
        encoder=draw(st.none() | words),
        spending=draw(st.none() | words),
        address=draw(words),
        bundles=tuple(draw(st.lists(digests, min_size=1, max_size=2))),
        policy=draw(policies),
    )


@given(written=settings())
def test_settings_read_back_are_the_settings_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, written: HolderSettings
) -> None:
    """Whatever letters they hold: quotes, backslashes, control characters, other alphabets."""
    path = tmp_path_factory.mktemp("settings") / CLIENT_TOML
    path.write_bytes(settings_text(written).encode())
    assert read_settings(path, HolderSettings) == written


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return found(tmp_path / "parties").with_law()


@pytest.fixture
def terms(parties: Parties) -> Terms:
    return parties.terms


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("threads = 1", "thread = 1", "thread: unknown setting"),
        ("threads = 1", 'threads = "1"', "threads: input should be a valid integer"),
        ("holdout = 0.25", "holdout = nan", "holdout: input should be a finite number"),
        ("min_cohort = 2", "", None),
        (
            "text_field",
            'statistics = "law.stats"\ntext_field',
            "statistics: unknown setting",
        ),
        ("corpus = [", "corpus = [] #", "corpus: "),
        ('domain = "law"', "", "domain: missing"),
        (
            'domain = "law"',
            'domain = "two words"',
            "domain: a name has at most 64 letters",
        ),
        ('domain = "law"', 'domain = "law', "is not valid TOML"),
        (
            'weightings = ["equal"]',
            'weightings = ["loud"]',
            "policy.weightings.0: input should be 'equal' or 'tokens'",
        ),
    ],
)
def test_a_mistake_in_the_settings_is_one_sentence_that_names_it(
    parties: Parties, old: str, new: str, sentence: str | None
) -> None:
    """The file, the place within it, what is wrong; what may be left out is no mistake."""
    parties.rewrite("law", old, new)
    if sentence is None:
        assert parties.law.settings.policy.min_cohort == 3
        return
    with pytest.raises(InputError) as error:
        parties.holder("law")
    said = str(error.value)
    assert str(parties.homes["law"] / CLIENT_TOML) in said
    assert sentence in said
    assert "\n" not in said


def test_a_folder_is_for_its_owner_alone_and_never_made_over_another(
    parties: Parties, tmp_path: Path
) -> None:
    """Nor are its keys, or anything of an epoch: sums, token ids of held-out documents, digests."""
    home = parties.homes["law"]
    key = (home / "identity.key").read_bytes()
    with pytest.raises(InputError, match="already exists and is not empty"):
        create_holder(home, parties.law.settings)
    assert (home / "identity.key").read_bytes() == key
    assert (
        stat.S_IMODE(home.stat().st_mode)
        == stat.S_IMODE((home / "epochs").stat().st_mode)
        == 0o700
    )
    [epoch] = (home / "epochs").iterdir()
    for private in (home / "identity.key", home / "node.key", *epoch.iterdir()):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    with pytest.raises(
        InputError, match=r"client\.toml not found; create it with `init`"
    ):
        Holder(tmp_path)


# The data that stands ready


def test_an_epoch_under_other_terms_does_not_fit(
    parties: Parties, terms: Terms
) -> None:
    """What stands ready for one window is not sent for another; without an epoch there is
    nothing.
    """
    holder = parties.law
    other = terms.model_copy(update={"sampling": Sampling(4)})
    with refusing("epoch_does_not_fit"):
        holder.epoch(other)
    create_holder(parties.folder / "empty", holder.settings)
    with refusing("no_epoch"):
        Holder(parties.folder / "empty").epoch(terms)


def test_sums_are_weighted_to_the_share_of_the_cohort(
    parties: Parties, terms: Terms
) -> None:
    """All of the mass for the only holder of a domain, half of it beside another."""
    holder = parties.law
    key, epoch = holder.key, holder.epoch(terms)
    raw = holder.epochs.statistics(epoch).statistics
    alone, beside = (
        form_cohort(terms, {key: "law", "f" * 64: domain}) for domain in ("code", "law")
    )
    assert holder.exact_sums(epoch, alone).equals(raw.weighted(EQUAL_MASS))
    assert holder.exact_sums(epoch, beside).equals(raw.weighted(EQUAL_MASS // 2))


def test_a_folder_of_version_0_2_is_refused_in_a_sentence(parties: Parties) -> None:
    """Its epochs do not tell where documents lay, by which their costs are found."""
    holder = parties.law
    holder.journal.append((OPENED_EPOCH, {"epoch": "ab" * 32, "sums": "cd" * 32}))
    with pytest.raises(
        JournalError,
        match=r"was written by Ridgeway 0\.2; make a new folder with `ridgeway client init`",
    ):
        _ = holder.account


def test_a_name_of_an_epoch_tells_nothing_of_its_data(
    parties: Parties, terms: Terms
) -> None:
    """Two holders of the very same text name it differently, and one that opens it again names it
    anew.
    """
    parties.settle("twin", "law", own_texts("law", "law", 20))
    names = {parties.holder(name).epoch(terms).name for name in ("law", "twin")}
    names.add(parties.ready("law").epoch(terms).name)
    assert len(names) == 3
    twin, law = (parties.holder(name) for name in ("twin", "law"))
    assert (
        twin.epochs.statistics(twin.epoch(terms)).content
        == law.epochs.statistics(law.epoch(terms)).content
    )
