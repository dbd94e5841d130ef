"""Plots as SVG: well-formed, the same every time, told apart without colour, nothing left out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from ridgeway.simulations.experiments.report.report_plots import (
    COLOURS,
    MARKERS,
    STROKES,
    described,
    plain_number,
    svg,
)
from ridgeway.simulations.experiments.report.report_tables import Plot, Series
from tests.support.report_samples import a_plot, plots

SVG = "{http://www.w3.org/2000/svg}"


def texts(image: str) -> list[str]:
    """Every piece of text that is drawn."""
    return ["".join(each.itertext()) for each in ElementTree.fromstring(image).iter(f"{SVG}text")]


def ids(image: str) -> list[str]:
    return re.findall(r'\bid="([^"]*)"', image)


@settings(max_examples=10)
@given(plot=plots)
def test_any_plot_is_one_well_formed_element(plot: Plot) -> None:
    """Whatever its words and numbers: gaps, zeros on a logarithm, no points at all, dollars and angle brackets."""
    image = svg(plot)
    assert image.startswith("<svg") and ElementTree.fromstring(image).tag == f"{SVG}svg"


def test_equal_plots_give_equal_bytes() -> None:
    """Today and tomorrow: no date, no number drawn at random."""
    first = svg(a_plot())
    svg.cache_clear()
    assert svg(a_plot()) == first


def test_no_two_plots_share_an_id() -> None:
    """They stand in one page; a reference inside a plot leads into the same plot."""
    one, other = svg(a_plot("one")), svg(a_plot("other"))
    assert not set(ids(one)) & set(ids(other))
    for image in (one, other):
        assert len(ids(image)) == len(set(ids(image)))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', image)) <= set(ids(image))


def test_nothing_is_fetched_from_elsewhere() -> None:
    """The only addresses are names of the format itself."""
    assert set(re.findall(r'https?://[^"]*', svg(a_plot()))) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_labels_series_and_level_are_named() -> None:
    """As text, with signs as they were written, and for those who cannot see it too."""
    line = Series("a < b & $c$", (1, 2), (3, 4))
    drawn = svg(a_plot(series=(line,), level=("majority", 3.5), title='"T" <1>'))
    assert {"holders", "accuracy (%)", "a < b & $c$", "majority"} <= set(texts(drawn))
    assert '<title>"T" &lt;1&gt;</title>' in drawn and 'role="img"' in drawn


def test_a_single_line_that_says_what_its_axis_says_has_no_legend() -> None:
    """The same words twice would help nobody."""
    line = Series("accuracy (%)", (1, 2), (3, 4))
    assert texts(svg(a_plot("alone", series=(line,)))).count("accuracy (%)") == 1


def test_series_differ_without_colour() -> None:
    """As many as there are colours have each another marker and stroke together."""
    looks = {(MARKERS[place % len(MARKERS)], str(STROKES[place % len(STROKES)])) for place in range(len(COLOURS))}
    assert len(looks) == len(COLOURS)


def test_a_gap_keeps_its_place_on_the_axis() -> None:
    """Where no value was found the axis does not end."""
    line = Series("a", (0, 10, 20, 50), (1, 2, 3, None))
    assert "50" in texts(svg(a_plot("gap", series=(line,))))


def test_a_logarithm_shows_plain_numbers_where_was_measured() -> None:
    """No powers of ten for a reader to work out; zero has a place as well."""
    line = Series("a", (0, 1, 10, 1_000), (1, 2, 3, 4))
    assert {"0", "1", "10", "1,000"} <= set(texts(svg(a_plot("log", series=(line,), x_scale="log"))))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (1, "1"),
        (0.30000000000000004, "0.3"),
        (96.25, "96.25"),
        (10_000, "10,000"),
        (-2.5, "-2.5"),
        (1e-5, "10⁻⁵"),
        (3e10, "3 × 10¹⁰"),
        (0.001, "0.001"),
        (1_234_560, "1,234,560"),
    ],
)
def test_numbers_are_plain(value: float, words: str) -> None:
    """With commas in thousands and no more digits than were meant."""
    assert plain_number(value) == words


def test_the_description_says_where_lines_begin_and_end() -> None:
    """Gaps at the ends are not ends."""
    lines = (Series("a", (1, 2, 3), (None, 5.5, 7)), Series("b", (1,), (None,)), Series("c", (4,), (9,)))
    told = described(a_plot(series=lines))
    assert told == "accuracy (%) over holders. a: from 5.5 at 2 to 7 at 3. b: no points. c: 9 at 4."
