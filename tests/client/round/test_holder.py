"""A holder's folder: settings that read back as they were written, sums that are made or given, and what is refused."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.deploy.holder_folder import create_holder, settings_text
from ridgeway.client.round.holder import SETTINGS, Holder, HolderSettings
from ridgeway.client.round.policy import Policy
from ridgeway.common.base.errors import BrokenIdentity, InputError, Refused
from ridgeway.common.base.settings import Sampling
from ridgeway.common.base.settings_file import read_settings
from ridgeway.common.protocol.cohort import Terms, form_cohort
from ridgeway.common.statistics.statistics_file import Prepared, save_prepared
from tests.support.corpora_on_disk import touch_later, write_jsonl
from tests.support.simulated_federation import Parties, found, own_texts

digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
words = st.text(min_size=1, max_size=12)
names = st.text("abcxyzäß019_-.", max_size=10).map(lambda word: f"d{word}")
policies = st.builds(
    Policy,
    coordinator=digests,
    encoders=st.lists(digests, min_size=1, max_size=3).map(tuple),
    require_masking=st.booleans(),
    weightings=st.lists(st.sampled_from(("equal", "tokens")), max_size=2).map(tuple),
    window=st.integers(1, 1 << 16),
    max_tokens=st.integers(0, 1 << 40),
    min_cohort=st.integers(1, 1 << 20),
    min_difference=st.integers(1, 1 << 20),
)


@st.composite
def settings(draw: st.DrawFn) -> HolderSettings:
    """Any settings that a holder's folder can have."""
    source: dict[str, Any] = {"corpus": tuple(draw(st.lists(words, min_size=1, max_size=3)))}
    if draw(st.booleans()):
        source = {"statistics": draw(words), "held_out": draw(st.none() | words)}
    return HolderSettings(
        domain=draw(names),
        text_field=draw(words),
        holdout=draw(st.floats(0, 1, exclude_max=True)),
        threads=draw(st.integers(0, 1 << 20)),
        encoder=draw(st.none() | words),
        address=draw(words),
        bundles=tuple(draw(st.lists(digests, min_size=1, max_size=2))),
        policy=draw(policies),
        **source,
    )


@given(written=settings())
def test_settings_read_back_are_the_settings_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, written: HolderSettings
) -> None:
    """Whatever letters they hold: quotes, backslashes, control characters, other alphabets."""
    path = tmp_path_factory.mktemp("settings") / SETTINGS
    path.write_bytes(settings_text(written).encode())
    assert read_settings(path, HolderSettings) == written


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    made = found(tmp_path / "parties")
    made.settle("law", "law", own_texts("law", "law", 20))
    return made


@pytest.fixture
def terms(parties: Parties) -> Terms:
    return parties.federation().terms


def edit(parties: Parties, old: str, new: str) -> Path:
    path = parties.homes["law"] / SETTINGS
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("threads = 1", "thread = 1", "thread: there is no setting of this name"),
        ("threads = 1", 'threads = "1"', "threads: input should be a valid integer"),
        ("threads = 1", "threads = -1", "threads: input should be greater than or equal to 0"),
        ("threads = 1", "threads = 1979-05-27", "threads: input should be a valid integer"),
        ("holdout = 0.25", "holdout = nan", "holdout: input should be a finite number"),
        ("min_cohort = 2", "min_cohrt = 2", "policy.min_cohrt: there is no setting of this name"),
        ("min_cohort = 2", "", None),
        ('domain = "law"', "", "domain: this is missing"),
        ('domain = "law"', 'domain = "two words"', "domain: a name has at most 64 letters"),
        ('domain = "law"', 'domain = "law', "not a settings file in TOML"),
        ('weightings = ["equal"]', 'weightings = ["loud"]', "policy.weightings.0: input should be 'equal' or 'tokens'"),
    ],
)
def test_a_mistake_in_the_settings_is_one_sentence_that_names_it(
    parties: Parties, old: str, new: str, sentence: str | None
) -> None:
    """The file, the place within it, what is wrong; what may be left out is no mistake."""
    path = edit(parties, old, new)
    if sentence is None:
        assert parties.holder("law").settings.policy.min_cohort == 3
        return
    with pytest.raises(InputError) as error:
        parties.holder("law")
    assert str(path) in str(error.value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_settings_says_what_makes_them(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(InputError, match=r"there is no .*client\.toml; `init` makes one"):
        Holder(tmp_path)


def test_a_holder_has_either_a_corpus_or_statistics(parties: Parties) -> None:
    """Not both, so that it is clear what is sent."""
    edit(parties, "text_field", 'statistics = "law.stats"\ntext_field')
    with pytest.raises(InputError, match="name either a corpus or a statistics file"):
        parties.holder("law")


def test_an_existing_folder_is_never_touched(parties: Parties) -> None:
    """Nor the keys in it."""
    home = parties.homes["law"]
    key = (home / "identity.key").read_bytes()
    with pytest.raises(InputError, match="exists already and is not empty"):
        create_holder(home, parties.holder("law").settings)
    assert (home / "identity.key").read_bytes() == key


def test_the_folder_is_for_its_owner_alone(parties: Parties) -> None:
    """And so are the keys and the token ids of held-out documents."""
    home, terms = parties.homes["law"], parties.federation().terms
    parties.holder("law").held_out(terms)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    [ids] = (home / "held-out").iterdir()
    for private in (home / "identity.key", home / "node.key", ids):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600


# Sums


def test_what_was_offered_is_what_is_sent_until_the_next_offer(parties: Parties, terms: Terms) -> None:
    """A corpus that changes in between does not change what the round was told of."""
    holder = parties.holder("law")
    offered = holder.ready(terms)
    corpus = write_jsonl(parties.folder / "corpora" / "law.jsonl", own_texts("new", "law", 20))
    touch_later(corpus)
    assert holder.current(terms).content == offered.content
    assert holder.ready(terms).content != offered.content
    assert holder.current(terms).content == holder.ready(terms).content


def test_sums_under_other_terms_are_made_anew(parties: Parties, terms: Terms) -> None:
    """What lies ready for one window is not sent for another."""
    holder = parties.holder("law")
    holder.ready(terms)
    other = terms.model_copy(update={"sampling": terms.sampling.model_copy(update={"window": 4})})
    assert holder.current(other).sampling == Sampling(4, 0)


def test_held_out_documents_are_in_no_sum(parties: Parties, terms: Terms) -> None:
    """A share of the documents is kept out, the same ones each time."""
    holder = parties.holder("law")
    first, again = holder.held_out(terms), parties.holder("law").held_out(terms)
    assert first.ids.tolist() == again.ids.tolist()
    assert 0 < len(first.lengths) < 20


def given_ahead(parties: Parties, prepared: Prepared, held_out: Path | None = None) -> Holder:
    """The holder with a statistics file instead of its corpus."""
    path = parties.folder / "law.stats"
    save_prepared(prepared, path)
    corpus = parties.folder / "corpora" / "law.jsonl"
    more = f'\nheld_out = "{held_out}"' if held_out else ""
    edit(parties, f'corpus = ["{corpus}"]', f'statistics = "{path}"{more}')
    return parties.holder("law")


def test_sums_made_ahead_are_sent_as_they_are(parties: Parties, terms: Terms) -> None:
    """With documents to evaluate on if those were kept, and none otherwise."""
    prepared = parties.holder("law").ready(terms)
    held_out = write_jsonl(parties.folder / "law.test.jsonl", own_texts("test", "law", 5))
    holder = given_ahead(parties, prepared, held_out)
    assert holder.ready(terms).content == holder.current(terms).content == prepared.content
    assert len(holder.held_out(terms).lengths) == 5
    edit(parties, f'held_out = "{held_out}"', "")
    assert len(parties.holder("law").held_out(terms).lengths) == 0


@pytest.mark.parametrize(
    "changes",
    [{"domain": "code"}, {"fingerprint": "0" * 64}, {"sampling": Sampling(9, 0)}, {"sampling": Sampling(8, 5)}],
)
def test_sums_made_ahead_under_other_terms_are_refused(parties: Parties, terms: Terms, changes: dict[str, Any]) -> None:
    """Of another domain, encoder or window; the reason names no file."""
    prepared = parties.holder("law").ready(terms)
    holder = given_ahead(parties, replace(prepared, **changes))
    with pytest.raises(Refused) as refused:
        holder.ready(terms)
    assert refused.value.code == "statistics_do_not_fit"
    assert str(parties.folder) not in refused.value.reason


def test_sums_that_no_text_can_give_are_not_sent(parties: Parties, terms: Terms) -> None:
    """Under masks nobody else could find them out."""
    holder = parties.holder("law")
    prepared = holder.ready(terms)
    cohort = form_cohort(terms, {holder.identity.public: "law"}, {holder.identity.public: 1})
    prepared.statistics.gram[0, 0] = -5
    with pytest.raises(BrokenIdentity):
        holder.weighted(prepared, cohort, cohort.members[0])


def test_nobody_else_can_tell_from_its_name_which_sums_they_are(parties: Parties, terms: Terms) -> None:
    """Two holders of the very same text name it differently, and each always the same."""
    parties.settle("twin", "law", own_texts("law", "law", 20))
    law, twin = parties.holder("law"), parties.holder("twin")
    same = law.ready(terms)
    assert same.content == twin.ready(terms).content
    assert law.source(same) == parties.holder("law").source(same) != twin.source(same)
