"""The accuracy to expect of a private round: a formula with the right limits, as a command."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.__main__ import main
from ridgeway.common.base.errors import InputError
from ridgeway.common.privacy.document_bound import PrivacyMode
from ridgeway.coordinator.accuracy_plan import Forecast, forecast, rightly_chosen

modes = st.sampled_from(["columns", "full"])


@given(st.integers(2, 200))
def test_without_a_difference_one_guesses(domains: int) -> None:
    """One in C is right by chance; with a great difference all are."""
    assert rightly_chosen(0, domains) == pytest.approx(1 / domains, rel=1e-3)
    assert rightly_chosen(12, domains) == pytest.approx(1, rel=1e-3)


@given(modes, st.integers(50, 10**6), st.integers(2, 50), st.floats(0.1, 10))
def test_documents_and_epsilon_help_and_domains_do_not(
    mode: PrivacyMode, documents: int, domains: int, epsilon: float
) -> None:
    """More text or less privacy never predicts worse, and more domains never better, in any kind of text."""

    def at(count: int, among: int, cost: float) -> Forecast:
        return forecast(mode, count, among, cost, 1e-8)

    here = at(documents, domains, epsilon)
    assert 0 <= here.least <= here.expected <= here.most <= 1
    for better in (at(2 * documents, domains, epsilon), at(documents, domains, 2 * epsilon)):
        assert all(better.by_kind[kind] >= share - 1e-9 for kind, share in here.by_kind.items())
    if mode == "columns":  # with products, more domains are more documents to learn from
        assert all(at(documents, domains + 1, epsilon).by_kind[kind] <= share for kind, share in here.by_kind.items())


def test_no_router_has_one_domain() -> None:
    """What cannot be planned is said."""
    with pytest.raises(InputError, match="two domains"):
        forecast("columns", 100, 1, 1.0, 1e-8)


def test_the_command_shows_both_modes(capsys: pytest.CaptureFixture[str]) -> None:
    """A table for people, and JSON of the same for programs."""
    words = ["plan", "--documents", "2000", "--domains", "5", "--epsilon", "1", "--epsilon", "3"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and [each["privacy"] for each in told["forecasts"]] == ["columns", "full"] * 2
    with pytest.raises(SystemExit):
        main(words)
    assert f"{100 * told['forecasts'][0]['expected']:.0f} %" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--documents", "2000", "--epsilon", "50"])
    assert ended.value.code == 2 and "ε must be above 0" in capsys.readouterr().err
