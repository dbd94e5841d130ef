"""`--sentences`: which prompts a release's sentence encoder reads, and what commands say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.common.routing.router import Router
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import write_jsonl
from tests.support.serving import (
    CASCADE_DOMAINS,
    prompt_for,
    release_of,
    unsure_prompts,
)

SURE = prompt_for("law", CASCADE_DOMAINS)
(UNSURE,) = unsure_prompts(1)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


@pytest.mark.parametrize("explain", [[], ["--explain"]])
@pytest.mark.parametrize(
    ("prompt", "use", "said"),
    [
        (SURE, "auto", "decided by the table"),
        (UNSURE, "auto", "decided by the sentence encoder"),
        (SURE, "always", "decided by the sentence encoder"),
    ],
)
def test_a_decision_says_what_decided(
    shop: Workshop,
    cascade: Path,
    sentences_cache: Path,
    explain: list[str],
    prompt: str,
    use: str,
    said: str,
) -> None:
    """In words for people."""
    done = shop.call(
        "route",
        cascade,
        prompt,
        *explain,
        "--sentences",
        use,
        RIDGEWAY_CACHE=str(sentences_cache),
    )
    assert (done.code, done.stdout.splitlines()[1]) == (0, said), done.stderr


def test_many_prompts_have_a_column_for_it_and_json_a_field(
    shop: Workshop, cascade: Path, sentences_cache: Path
) -> None:
    done = shop.call(
        "route",
        cascade,
        "-",
        stdin=f"{SURE}\n{UNSURE}\n",
        RIDGEWAY_CACHE=str(sentences_cache),
    )
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == [
        "table",
        "sentences",
    ]
    done = shop.call(
        "route", cascade, UNSURE, "--json", RIDGEWAY_CACHE=str(sentences_cache)
    )
    router = Router.load(cascade)
    assert done.json["router"] == "sentences"
    assert done.json["scores"] == router.route(UNSURE).scores


def test_a_release_without_a_sentence_encoder_says_nothing_of_it(
    shop: Workshop,
) -> None:
    release_of(shop / "plain", CASCADE_DOMAINS)
    assert "decided by" not in shop.call("route", shop / "plain", SURE).stdout


@pytest.mark.usefixtures("no_sentences")
def test_never_needs_no_wheel(shop: Workshop, cascade: Path) -> None:
    """The other uses say what is missing, in one sentence."""
    assert shop.call("route", cascade, UNSURE, "--sentences", "never").code == 0
    done = shop.call("route", cascade, UNSURE)
    assert done.code == 2
    assert (
        done.stderr.count("\n") == 1
        and "the sentence encoder is not on this machine" in done.stderr
    )


@pytest.mark.parametrize("command", ["route", "evaluate"])
def test_an_unknown_use_is_refused_in_one_sentence(
    shop: Workshop, command: str
) -> None:
    done = shop.call(command, shop / "release", "hello", "--sentences", "sometimes")
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert all(
        word in done.stderr
        for word in ("--sentences", "'sometimes'", "auto", "never", "always")
    )


def test_an_evaluation_counts_what_each_router_decided(
    shop: Workshop, cascade: Path, sentences_cache: Path
) -> None:
    for name in CASCADE_DOMAINS:
        write_jsonl(
            shop / "tests" / f"{name}.test.jsonl",
            [prompt_for(name, CASCADE_DOMAINS), UNSURE],
        )
    done = shop.call(
        "evaluate",
        cascade,
        shop / "tests",
        "--json",
        RIDGEWAY_CACHE=str(sentences_cache),
    )
    assert done.json["decided_by"] == {"table": 3, "sentences": 3}
    done = shop.call(
        "evaluate", cascade, shop / "tests", RIDGEWAY_CACHE=str(sentences_cache)
    )
    assert "3 by the table, 3 by the sentence encoder" in done.stderr
