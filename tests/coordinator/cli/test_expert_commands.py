"""`ridgeway experts` and `route --experts`: scores in, a table beside or in a release, an expert
named.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeway.common.routing.router import Router
from tests.support.commands import Workshop, workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences
from tests.support.in_process import experts_toml
from tests.support.making import contents

FIRST, SECOND, THIRD = ALPHABETS
QUALITY = {
    FIRST: {"large": 0.9, "small": 0.2},
    SECOND: {"large": 0.3, "small": 0.8},
    THIRD: {"large": 0.5},
}


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A workshop with a score file: each prompt's domain can be told by its letters."""
    made = workshop(tmp_path)
    lines = [
        {"prompt": prompt, "scores": QUALITY[domain]}
        for domain in ALPHABETS
        for prompt in sentences(domain, 50)
    ]
    (made / "scores.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    address = {"base_url": "http://127.0.0.1:9/v1"}
    experts = dict.fromkeys(("large", "small"), address)
    (made / "experts.toml").write_text(experts_toml(experts, table="quality.json"))
    return made


def prompt_of(domain: str) -> str:
    return sentences(domain, 51)[-1]


def test_scores_become_a_table_beside_that_chooses_experts(shop: Workshop) -> None:
    """Prompts are routed to domains, sums written beside; each prompt then goes to whom its
    domain's scores name.
    """
    before = contents(shop / "release")
    made = shop.call(
        "experts measure release --scores scores.jsonl --out quality.json --json"
    )
    assert made.good.json["counts"] == [[50, 50], [50, 50], [50, 0]]
    assert made.json["chosen"] == {FIRST: "large", SECOND: "small", THIRD: "large"}
    assert contents(shop / "release") == before
    route = "route --experts experts.toml release"
    for domain, expert in ((FIRST, "large"), (SECOND, "small")):
        routed = shop.do(f"{route} --json", prompt_of(domain)).json
        assert (routed["best"], routed["expert"]) == (domain, expert)
        assert routed["expert_reason"] == "quality"
    said = shop.do(route, prompt_of(SECOND)).stdout
    assert "expert small   because: quality, expected quality " in said
    many = shop.do(route, "-", stdin=prompt_of(SECOND) + "\n").stdout
    assert many.splitlines()[0].split("\t")[2] == "small"


def test_a_signed_table_travels_in_the_release(shop: Workshop) -> None:
    """The manifest alone changes, and experts are chosen without a file beside; a strange key signs
    nothing.
    """
    old = contents(shop / "release")
    strange = shop.call("coordinator key --key-file strange.key")
    refused = shop.call(
        "experts measure release --scores scores.jsonl --sign --key-file strange.key"
    )
    assert (strange.code, refused.code) == (0, 2)
    assert contents(shop / "release") == old
    parent = Router.load(shop / "release").release
    shop.do("experts measure release --scores scores.jsonl --sign")
    new = contents(shop / "release")
    assert {name for name in new if new[name] != old[name]} == {"manifest.json"}
    router = Router.load(shop / "release")
    assert router.quality is not None and router.quality.experts == ("large", "small")
    assert json.loads(new["manifest.json"])["parent"] == parent
    assert router.without(THIRD).quality is not None
    toml = (
        (shop / "experts.toml")
        .read_text()
        .replace('table = "quality.json"', "mu = 0.5")
        .replace('"large-model"', '"large-model"\ncost = 2.0')
    )
    (shop / "experts.toml").write_text(toml)
    shown = shop.do("experts show release --json").json
    assert shown["chosen"][FIRST] == "large"
    dear = shop.call("experts show release --experts experts.toml --json").json
    assert set(dear["chosen"].values()) == {"small"}
    said = shop.do("experts show release").stdout
    assert "Best single expert: " in said and "1 of 6 cells have no scores" in said


def test_the_domain_of_a_line_and_of_a_file_come_before_the_router(
    shop: Workshop,
) -> None:
    """A line's own domain first, then --domain; the router is asked for the rest alone."""
    (shop / "mine.csv").write_text(
        f"prompt,expert,score,domain\nx,large,1,{FIRST}\nx,large,0,\n"
    )
    command = "experts measure release --scores mine.csv --json --domain"
    assert shop.do(command, SECOND).json["counts"] == [[1], [1], [0]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("experts show release", "has no expert scores"),
        ("experts show release --experts experts.toml", "there is no"),
        ("experts measure release --scores none.csv", "there is no file none.csv"),
        (
            "experts measure release --scores scores.jsonl --domain astrology",
            "no domain",
        ),
        ("route release x --experts none.toml", "there is no none.toml"),
        ("route release x --experts other.toml", "not a quality table"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(
    shop: Workshop, words: str, said: str
) -> None:
    """With exit code 2, and nothing is written."""
    (shop / "other.toml").write_text(
        (shop / "experts.toml").read_text().replace("quality.json", "scores.jsonl")
    )
    before = contents(shop / "release")
    done = shop.call(words)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert contents(shop / "release") == before
