"""A holder's folder: settings that read back as they were written, sums that are made or given, and what is refused."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.holder import SETTINGS, Holder, Settings
from client.policy import Policy
from client.setup import create_holder, settings_text
from common.cohort import Terms
from common.errors import InputError, Refused
from common.settings import Sampling
from common.statistics_file import Prepared, save_prepared
from common.toml import read_settings
from tests.corpora_on_disk import touch_later, write_jsonl
from tests.village import Village, found, hurry, own_texts

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
def settings(draw: st.DrawFn) -> Settings:
    """Any settings that a holder's folder can have."""
    source: dict[str, Any] = {"corpus": tuple(draw(st.lists(words, min_size=1, max_size=3)))}
    if draw(st.booleans()):
        source = {"statistics": draw(words), "held_out": draw(st.none() | words)}
    return Settings(
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
    tmp_path_factory: pytest.TempPathFactory, written: Settings
) -> None:
    """Whatever letters they hold: quotes, backslashes, control characters, other alphabets."""
    path = tmp_path_factory.mktemp("settings") / SETTINGS
    path.write_bytes(settings_text(written).encode())
    assert read_settings(path, Settings) == written


@pytest.fixture
def village(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Village:
    hurry(monkeypatch)
    made = found(tmp_path / "village")
    made.settle("law", "law", own_texts("law", "law", 20))
    return made


@pytest.fixture
def terms(village: Village) -> Terms:
    return village.federation().terms


def edit(village: Village, old: str, new: str) -> Path:
    path = village.homes["law"] / SETTINGS
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
    village: Village, old: str, new: str, sentence: str | None
) -> None:
    """The file, the place within it, what is wrong; what may be left out is no mistake."""
    path = edit(village, old, new)
    if sentence is None:
        assert village.holder("law").settings.policy.min_cohort == 3
        return
    with pytest.raises(InputError) as error:
        village.holder("law")
    assert str(path) in str(error.value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_settings_says_what_makes_them(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(InputError, match=r"there is no .*client\.toml; `init` makes one"):
        Holder(tmp_path)


def test_a_holder_has_either_a_corpus_or_statistics(village: Village) -> None:
    """Not both, so that it is clear what is sent."""
    edit(village, "text_field", 'statistics = "law.stats"\ntext_field')
    with pytest.raises(InputError, match="name either a corpus or a statistics file"):
        village.holder("law")


def test_an_existing_folder_is_never_touched(village: Village) -> None:
    """Nor the keys in it."""
    home = village.homes["law"]
    key = (home / "identity.key").read_bytes()
    with pytest.raises(InputError, match="exists already and is not empty"):
        create_holder(home, village.holder("law").settings)
    assert (home / "identity.key").read_bytes() == key


def test_the_folder_is_for_its_owner_alone(village: Village) -> None:
    """And so are the keys and the token ids of held-out documents."""
    home, terms = village.homes["law"], village.federation().terms
    village.holder("law").held_out(terms)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    [ids] = (home / "held-out").iterdir()
    for private in (home / "identity.key", home / "node.key", ids):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600


# Sums


def test_what_was_offered_is_what_is_sent_until_the_next_offer(village: Village, terms: Terms) -> None:
    """A corpus that changes in between does not change what the round was told of."""
    holder = village.holder("law")
    offered = holder.ready(terms)
    corpus = write_jsonl(village.folder / "corpora" / "law.jsonl", own_texts("new", "law", 20))
    touch_later(corpus)
    assert holder.current(terms).content == offered.content
    assert holder.ready(terms).content != offered.content
    assert holder.current(terms).content == holder.ready(terms).content


def test_sums_under_other_terms_are_made_anew(village: Village, terms: Terms) -> None:
    """What lies ready for one window is not sent for another."""
    holder = village.holder("law")
    holder.ready(terms)
    other = terms.model_copy(update={"sampling": terms.sampling.model_copy(update={"window": 4})})
    assert holder.current(other).sampling == Sampling(4, 0)


def test_held_out_documents_are_in_no_sum(village: Village, terms: Terms) -> None:
    """A share of the documents is kept out, the same ones each time."""
    holder = village.holder("law")
    first, again = holder.held_out(terms), village.holder("law").held_out(terms)
    assert first.ids.tolist() == again.ids.tolist()
    assert 0 < len(first.lengths) < 20


def given_ahead(village: Village, prepared: Prepared, held_out: Path | None = None) -> Holder:
    """The holder with a statistics file instead of its corpus."""
    path = village.folder / "law.stats"
    save_prepared(prepared, path)
    corpus = village.folder / "corpora" / "law.jsonl"
    more = f'\nheld_out = "{held_out}"' if held_out else ""
    edit(village, f'corpus = ["{corpus}"]', f'statistics = "{path}"{more}')
    return village.holder("law")


def test_sums_made_ahead_are_sent_as_they_are(village: Village, terms: Terms) -> None:
    """With documents to evaluate on if those were kept, and none otherwise."""
    prepared = village.holder("law").ready(terms)
    held_out = write_jsonl(village.folder / "law.test.jsonl", own_texts("test", "law", 5))
    holder = given_ahead(village, prepared, held_out)
    assert holder.ready(terms).content == holder.current(terms).content == prepared.content
    assert len(holder.held_out(terms).lengths) == 5
    edit(village, f'held_out = "{held_out}"', "")
    assert len(village.holder("law").held_out(terms).lengths) == 0


@pytest.mark.parametrize(
    "changes",
    [{"domain": "code"}, {"fingerprint": "0" * 64}, {"sampling": Sampling(9, 0)}, {"sampling": Sampling(8, 5)}],
)
def test_sums_made_ahead_under_other_terms_are_refused(village: Village, terms: Terms, changes: dict[str, Any]) -> None:
    """Of another domain, encoder or window; the reason names no file."""
    prepared = village.holder("law").ready(terms)
    holder = given_ahead(village, replace(prepared, **changes))
    with pytest.raises(Refused) as refused:
        holder.ready(terms)
    assert refused.value.code == "statistics_do_not_fit"
    assert str(village.folder) not in refused.value.reason


def test_nobody_else_can_tell_from_its_name_which_sums_they_are(village: Village, terms: Terms) -> None:
    """Two holders of the very same text name it differently, and each always the same."""
    village.settle("twin", "law", own_texts("law", "law", 20))
    law, twin = village.holder("law"), village.holder("twin")
    same = law.ready(terms)
    assert same.content == twin.ready(terms).content
    assert law.source(same) == village.holder("law").source(same) != twin.source(same)
