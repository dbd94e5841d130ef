"""A coordinator's folder as it is made: settings that read back as they were written, and mistakes
in one sentence.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.records import read_settings
from ridgeway.common.base.settings import Sampling
from ridgeway.coordinator.deploy.coordinator_folder import (
    create_federation,
    settings_text,
)
from ridgeway.coordinator.round.federation import (
    COORDINATOR_TOML,
    Abstention,
    Federation,
    FederationSettings,
    PrivacySettings,
    RoundSettings,
    RouterSettings,
)

words = st.text(min_size=1, max_size=12)
addresses = st.sampled_from(
    ("127.0.0.1:1", "ridgeway.example.org:9443", "[::1]:80", 'a"b\\c:1')
)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
settings = st.builds(
    FederationSettings,
    listen=addresses,
    address=addresses,
    encoder=words,
    mode=st.sampled_from(("private", "clear", "masked")),
    weighting=st.sampled_from(("equal", "tokens")),
    sampling=st.builds(
        Sampling,
        window=st.integers(1, 1 << 10),
        max_tokens=st.integers(0, 1 << 40),
        stride=st.just(0) | st.integers(1 << 10, 1 << 16),
        units=st.integers(0, 800).map(lambda number: 5 * number),
        mistyped=st.integers(0, 1 << 12),
    ),
    round=st.builds(
        RoundSettings,
        min_holders=st.integers(2, 1 << 20),
        wait=st.floats(min_value=0, allow_infinity=False),
        deadline=positive,
        may_lapse=st.lists(
            st.sampled_from(("law", "code")), max_size=2, unique=True
        ).map(tuple),
    ),
    router=st.builds(
        RouterSettings,
        ridge=st.floats(1e-6, 10.0),
        normalise_columns=st.booleans(),
        selector=st.sampled_from(("average", "all", "entropy")),
        k=st.integers(1, 1 << 20),
    ),
    privacy=st.builds(
        PrivacySettings,
        sums=st.sampled_from(("columns", "full")),
        epsilon=st.floats(0.01, 20.0),
        delta=st.floats(1e-30, 1e-3),
    ),
    abstention=st.just(Abstention())
    | st.builds(
        Abstention,
        threshold=st.floats(0, 1),
        fallback=words,
        outside=st.just(("everyday",)),
    ),
    examples=st.lists(st.just("Is 'this' a \"prompt\"? \\ {}"), max_size=2).map(tuple),
)


@given(written=settings)
def test_settings_read_back_are_the_settings_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, written: FederationSettings
) -> None:
    """Whatever letters and numbers they hold."""
    path = tmp_path_factory.mktemp("settings") / COORDINATOR_TOML
    path.write_bytes(settings_text(written).encode())
    assert read_settings(path, FederationSettings) == written


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("min_holders = 2", "min_holder = 2", "round.min_holder: unknown setting"),
        (
            "min_holders = 2",
            "min_holders = 1",
            "round.min_holders: input should be greater than or equal to 2",
        ),
        (
            "stride = 128",
            "stride = 4",
            "a stride of 4 is shorter than the window of 32",
        ),
        ("window = 32", "window = 0", "sampling: window is 0; it must be 1 to 65536"),
        ("[sampling]", "window = 8\n[other]", "window: unknown setting"),
        (
            'mode = "private"',
            'mode = "loud"',
            "mode: input should be 'private', 'masked' or 'clear'",
        ),
        (
            "ridge = 0.01",
            "ridge = 0",
            "router.ridge: input should be greater than or equal to 0.000001",
        ),
        (
            'sums = "columns"',
            'sums = "rows"',
            "privacy.sums: input should be 'columns' or 'full'",
        ),
        ("[abstention]", "[abstention", "is not valid TOML"),
        ("threshold = 0.0", "threshold = 0.5", "name a fallback"),
    ],
)
def test_a_mistake_in_the_settings_is_one_sentence_that_names_it(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    """Before anything is run, not in the middle of a round."""
    folder = tmp_path / "coordinator"
    create_federation(folder, FederationSettings())
    path = folder / COORDINATOR_TOML
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as error:
        Federation(folder)
    assert str(path) in str(error.value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_an_existing_folder_is_never_touched_and_a_new_one_is_for_its_owner_alone(
    tmp_path: Path,
) -> None:
    """Nor the key in it."""
    folder = tmp_path / "coordinator"
    made = create_federation(folder, FederationSettings())
    with pytest.raises(InputError, match="already exists and is not empty"):
        create_federation(folder, FederationSettings())
    assert Federation(folder).identity.public == made.identity.public
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.kind for entry in made.ledger.journal.entries()] == ["founded"]
