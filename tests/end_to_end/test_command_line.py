"""The command line from private files to a routed prompt: the whole way in processes, then each
command by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ridgeway.__main__ import COMMANDS
from ridgeway.common.routing.release import load_release
from ridgeway.common.statistics import load_prepared
from tests.support.commands import RIDGEWAY, WIDTH, Workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.waiting import MAX_WAIT_S

DOMAINS = sorted(ALPHABETS)


# The whole way


def test_from_private_files_to_a_calibrated_route(
    shop: Workshop, tmp_path: Path
) -> None:
    """prepare, solve, route, evaluate: what each leaves behind is what the next one
    takes.

    The files are, byte for byte, those that the library made on another number of threads with
    another cache.
    """
    for domain in DOMAINS:
        out = tmp_path / f"{domain}.stats"
        call = shop.run if domain == "law" else shop.call
        done = call(
            "client prepare --window 64 --holdout 0 --threads 2",
            *(f"{domain}.jsonl", "--domain", domain, "--encoder", shop.encoder),
            *("--out", out),
        ).good
        assert done.stdout == ""
        assert "1 file" in done.stderr
        assert "wrote" in done.stderr
        assert out.read_bytes() == (shop / f"{domain}.stats").read_bytes()
    release = tmp_path / "release"
    stats = [tmp_path / f"{domain}.stats" for domain in reversed(DOMAINS)]
    solved = shop.run(
        "coordinator solve", *stats, "--out", release, "--encoder", shop.encoder
    ).good
    assert solved.stdout == ""
    names = ("manifest.json", "router.safetensors", "tokenizer.json")
    assert sorted(path.name for path in release.iterdir()) == sorted(names)
    assert all(
        (release / name).read_bytes() == (shop / "release" / name).read_bytes()
        for name in names
    )

    assert "not calibrated" in shop.do("route", release, "abcdefgh").stdout
    accuracy = shop.run("evaluate --json", release, "tests").good.json["accuracy"]
    assert accuracy == 100

    signed = shop.run("evaluate --propose --sign --json", release, "tests").good.json
    fitted = signed["proposal"]["confidence"]
    assert (
        signed["release"]
        == load_release(release).id
        != load_release(shop / "release").id
    )
    assert fitted["temperature"] == load_release(release).confidence.temperature != 1
    assert fitted["gap_after"] < fitted["gap_before"]
    routed = shop.run("route", release, "abcdefgh").good.stdout
    assert routed.startswith("law ")
    assert "confidence" in routed
    assert "not calibrated" not in routed
    assert shop.do("route --json", release, "0123").json["calibrated"] is True


# client


def test_parts_add_up_on_the_command_line(shop: Workshop, tmp_path: Path) -> None:
    """The file is, byte for byte, that of one run, which reads nothing that a part has kept."""
    out = tmp_path / "law.stats"
    files = [shop / f"{domain}.jsonl" for domain in DOMAINS]
    corpus: list[str | Path] = [*files, "--domain", "law", "--encoder", shop.encoder]
    for number in (1, 2, 3):
        done = shop.do("client prepare", *corpus, "--part", f"{number}/3", "--out", out)
        assert f"part {number} of 3" in done.stderr
        assert not out.exists()
    facts = shop.do("client prepare --part 1/3 --json", *corpus, "--out", out).json
    assert (facts["part"], facts["of"], facts["files_read"]) == (1, 3, 0)
    assert (
        shop.do("client prepare --json", *corpus, "--out", out).json["files_read"] == 0
    )
    shop.do("client prepare --fresh", *corpus, "--out", tmp_path / "whole.stats")
    assert out.read_bytes() == (tmp_path / "whole.stats").read_bytes()
    fresh = shop.call("client prepare --part 1/3 --fresh", *corpus, "--out", out)
    assert "--fresh discards all kept parts; use it without --part" in fresh.refusal
    assert shop.call(
        "client prepare --engine dask", *corpus, "--out", tmp_path / "no.stats"
    ).refusal


def test_prepare_says_in_json_what_it_met(shop: Workshop, tmp_path: Path) -> None:
    """Counts, the file and its digest, for programs."""
    path = write_jsonl(tmp_path / "a.jsonl", [*sentences("law", 40), "", " "])
    out = tmp_path / "new" / "law.stats"
    facts = shop.prepare(path, "--domain", "law", "--out", out, "--json").good.json
    assert facts["documents"] == 40
    assert facts["empty"] == 2
    assert 0 < facts["held_out"] < 10
    assert (facts["files"], facts["files_read"], facts["files_skipped"]) == (1, 1, 0)
    assert facts["samples"] == load_prepared(out).statistics.mass
    assert facts["digest"] == load_prepared(out).digest
    assert facts["bytes"] == out.stat().st_size
    again = shop.prepare(path, "--domain", "law", "--out", out, "--json").good.json
    assert again["files_read"] == 0
    assert again["digest"] == facts["digest"]


def test_settings_on_the_command_line_are_those_of_the_file(
    shop: Workshop, tmp_path: Path
) -> None:
    """Window, limit and fields arrive where they are used."""
    path = write_jsonl(tmp_path / "a.jsonl", ["abcdefgh" * 4] * 3, field="body")
    words = (
        "--domain law --window 8 --max-tokens 16 --holdout 0 --text-field prompt,body"
    )
    assert shop.prepare(f"{words} --out", tmp_path / "law.stats", path).good
    prepared = load_prepared(tmp_path / "law.stats")
    assert prepared.sampling.to_json() == {"window": 8, "max_tokens": 16}
    assert prepared.statistics.mass == 6


def test_inspect_shows_what_would_leave(shop: Workshop) -> None:
    """Every figure of the file, as a table and as JSON, and that no text is in it."""
    prepared = load_prepared(shop / "law.stats")
    facts = shop.do("client inspect --json law.stats").json
    assert facts["domain"] == "law"
    assert facts["fingerprint"] == prepared.fingerprint
    assert (facts["window"], facts["features"], facts["samples"]) == (
        64,
        WIDTH + 1,
        prepared.statistics.mass,
    )
    features = WIDTH + 1
    assert (facts["numbers"], facts["text"]) == (
        features * (features + 1) // 2 + features,
        "none",
    )
    assert facts["digest"] == prepared.digest
    shown = shop.do("client inspect law.stats")
    assert shown.stderr == ""
    assert all(
        str(facts[name]) in shown.stdout
        for name in ("domain", "fingerprint", "samples", "digest")
    )


def test_the_paper_preset_reproduces_the_published_settings(
    shop: Workshop, tmp_path: Path
) -> None:
    """One word sets windows of one token, plain sums, an absolute λ, normalised columns and the
    entropy selector.
    """
    for domain in DOMAINS:
        out = ("--out", tmp_path / f"{domain}.stats")
        words = ("--preset paper --json --domain", domain, f"{domain}.jsonl")
        facts = shop.prepare(*words, *out).good.json
        assert (facts["held_out"], facts["samples"]) == (0, facts["tokens"])
    stats = [tmp_path / f"{domain}.stats" for domain in DOMAINS]
    out = ("--preset paper --json --out", tmp_path / "release")
    solved = shop.solve(*out, *stats).good.json
    manifest = load_release(tmp_path / "release").manifest
    assert manifest["sampling"] == {"window": 1, "max_tokens": 1024}
    assert set(map(tuple, manifest["holdout"].values())) == {(0.0,)}
    assert (manifest["weighting"], manifest["normalise_columns"]) == ("tokens", True)
    assert manifest["ridge"] == {"relative": False, "value": 0.01}
    assert manifest["selector"] == {"k": 10, "name": "entropy"}
    assert solved["ridge"] == 0.01
    assert solved["masses"] == {
        domain: load_prepared(tmp_path / f"{domain}.stats").statistics.mass
        for domain in DOMAINS
    }
    assert (
        shop.do("evaluate --json", tmp_path / "release", "tests").json["accuracy"]
        == 100
    )


# route


def test_a_prompt_is_routed_to_its_domain(shop: Workshop) -> None:
    """Words for people on one line, figures for programs in JSON."""
    plain = shop.do("route release abcdefgh")
    assert plain.stdout.startswith("law ")
    assert plain.stdout.count("\n") == 1
    assert plain.stderr == ""
    decision = shop.do("route --json release abcdefgh").json
    assert (decision["domain"], decision["best"], decision["tokens"]) == (
        "law",
        "law",
        8,
    )
    assert sorted(decision["scores"]) == DOMAINS
    assert sum(decision["scores"].values()) == pytest.approx(1)
    assert decision["confidence"] == max(decision["scores"].values())
    assert (decision["abstained"], decision["calibrated"]) == (False, False)
    assert decision["release"] == load_release(shop / "release").id


def test_a_decision_is_explained_word_by_word(shop: Workshop) -> None:
    """The weights add up to the margin; the table names the words."""
    explained = shop.do("route --explain --json release", "abcd 0").json
    assert [word["text"] for word in explained["explanation"]] == ["abcd", " ", "0"]
    assert sum(word["weight"] for word in explained["explanation"]) == pytest.approx(
        explained["margin"]
    )
    assert explained["explanation"][-1]["domain"] == "code"
    shown = shop.do("route --explain release", "abcd 0").stdout
    assert shown.startswith("law ")
    assert "'0'" in shown


def test_prompts_on_standard_input_are_routed_line_by_line(shop: Workshop) -> None:
    """A line in, a line out, in order; blank lines, carriage returns and a missing last line end
    included.
    """
    prompts = ["abcdefgh", "0123456789", "", "nopqrstuv\r", "0123"]
    plain = shop.do("route release -", stdin="\n".join(prompts)).stdout.splitlines()
    rows = [line.split("\t") for line in plain]
    assert [row[0] for row in rows][:2] + [row[0] for row in rows][3:] == [
        "law",
        "code",
        "medicine",
        "code",
    ]
    assert all(0 < float(row[1]) <= 1 for row in rows)
    lines = shop.do(
        "route --json release -", stdin="\n".join(prompts)
    ).stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [8, 10, 0, 9, 4]
    alone = shop.do("route --json release 0123456789").json
    assert json.loads(lines[1]) == alone
    explained = shop.do("route --explain release -", stdin="ab\n0").stdout.splitlines()
    assert [len(json.loads(line)["explanation"]) for line in explained] == [1, 1]


def test_prompts_of_any_shape_are_routed(shop: Workshop) -> None:
    """Nothing, an emoji, half a character and a special token are prompts like others."""
    for prompt, tokens in (("", 0), ("😀", 1), (" ", 1), ("<end>", 0)):
        decision = shop.do("route --json --explain release", prompt).json
        assert decision["tokens"] == tokens
        assert decision["domain"] in DOMAINS
    empty = shop.do("route --json release", "").json
    assert empty["scores"] == {domain: pytest.approx(1 / 3) for domain in DOMAINS}
    assert shop.do("route --explain release", "").stdout
    assert shop.do("route --explain release -", stdin="\udcff\udcfe abc\n").stdout


def test_a_prompt_below_the_threshold_goes_to_the_fallback(shop: Workshop) -> None:
    """Asked for on the command line, or written into the release."""
    asked = "route release abcd --threshold 1 --fallback generalist"
    decision = shop.do(f"{asked} --json").json
    assert (decision["domain"], decision["best"], decision["abstained"]) == (
        "generalist",
        "law",
        True,
    )
    assert "abstained: too unsure; ahead: law" in shop.do(asked).stdout


def test_a_release_with_the_trusted_signer_is_used(
    shop: Workshop, tmp_path: Path
) -> None:
    """The key may be given as digits or as a file."""
    signer = load_release(shop / "release").signer
    (tmp_path / "key.txt").write_text(f"{signer.upper()}\n")
    for key in (signer, str(tmp_path / "key.txt")):
        assert shop.do("route release abcd --key", key).stdout.startswith("law")


def test_prompts_are_answered_as_they_come_and_a_reader_may_go_away(
    shop: Workshop,
) -> None:
    """The answer to a line comes before the next is written; `ridgeway route RELEASE - | head` ends
    quietly.
    """
    command: list[str | Path] = [RIDGEWAY, "route", shop / "release", "-"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=shop.environment(),
    ) as talking:
        assert talking.stdin and talking.stdout and talking.stderr
        for prompt, domain in ((b"abcd\n", b"law"), (b"0123\n", b"code")):
            talking.stdin.write(prompt)
            talking.stdin.flush()
            assert talking.stdout.readline().startswith(domain)
        talking.stdout.close()
        talking.stdin.write(b"0123\n")
        talking.stdin.close()
        said = talking.stderr.read()
        assert talking.wait(MAX_WAIT_S) == 0
        assert said == b""


# evaluate


def test_evaluate_gives_accuracy_domains_and_confusion(shop: Workshop) -> None:
    """In percent, by domain, with the rows of the matrix in the order it names."""
    result = shop.do("evaluate --json release tests").json
    assert result["accuracy"] == 100
    assert result["domains"] == dict.fromkeys(DOMAINS, 100)
    assert result["confusion"] == [[3, 0, 0], [0, 3, 0], [0, 0, 3]]
    assert (result["order"], result["unit"]) == (DOMAINS, "percent")
    shown = shop.do("evaluate release tests").stdout
    assert "mean over domains" in shown
    assert "100.0 %" in shown


def test_evaluate_reads_what_prepare_reads(shop: Workshop, tmp_path: Path) -> None:
    """A test file from an editor that writes a byte order mark is a test file."""
    for domain in DOMAINS:
        raw = (shop / "tests" / f"{domain}.test.jsonl").read_bytes()
        (tmp_path / f"{domain}.test.jsonl").write_bytes(b"\xef\xbb\xbf" + raw)
    assert shop.do("evaluate --json release", tmp_path).json["accuracy"] == 100


# encoder


def test_an_encoder_can_be_saved_listed_and_used(
    shop: Workshop, tmp_path: Path
) -> None:
    """The copy has the fingerprint of the first one, and is listed where encoders are kept."""
    saved = shop.do("encoder save --json", shop.encoder, tmp_path / "copy").json
    again = shop.do(
        "encoder save --json", f"dir:{tmp_path / 'copy'}", tmp_path / "again"
    ).json
    assert (
        saved["fingerprint"]
        == again["fingerprint"]
        == load_prepared(shop / "law.stats").fingerprint
    )
    assert (again["tokens"], again["width"]) == (42, WIDTH)
    cache = tmp_path / "cache"
    kept = cache / "encoders" / saved["fingerprint"]
    listed = shop.do("encoder list", RIDGEWAY_CACHE=str(cache)).stdout
    assert "use+words" in listed and "smollm2" in listed
    shop.do("encoder save", shop.encoder, kept)
    facts = shop.do("encoder list --json", RIDGEWAY_CACHE=str(cache)).json
    assert [card["fingerprint"] for card in facts["converted"]] == [
        saved["fingerprint"]
    ]
    assert "dir:PATH" in facts["sources"]
    assert (
        saved["fingerprint"]
        in shop.do("encoder list", RIDGEWAY_CACHE=str(cache)).stdout
    )


# The command itself


@pytest.mark.parametrize(
    "command", [*COMMANDS, "client prepare", "coordinator solve", "encoder save"]
)
def test_every_command_explains_itself(shop: Workshop, command: str) -> None:
    """--help names the command, on stdout, and is no error."""
    shown = shop.do(f"{command} --help")
    assert shown.stdout.lstrip().startswith(f"Usage: ridgeway {command} ")
    assert shown.stderr == ""


def test_the_version_is_printed(shop: Workshop) -> None:
    """For a report of a fault."""
    from ridgeway import __version__
    from ridgeway.common.base.machine import sentence_kernel, why_not

    native = f"no ({why_not})" if why_not else f"yes ({sentence_kernel()})"
    assert (
        shop.run("--version").good.stdout
        == f"ridgeway {__version__}, native {native}\n"
    )


@pytest.mark.parametrize("words", ["", "client", "coordinator", "encoder"])
def test_a_command_without_words_shows_its_help(shop: Workshop, words: str) -> None:
    """Not silence: the reader learns what can be said, and the exit code is that of nothing
    done.
    """
    shown = shop.call(words)
    assert shown.code == 2
    assert "Usage: ridgeway" in shown.stdout + shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_path_that_is_not_utf8_can_be_shown(shop: Workshop, tmp_path: Path) -> None:
    """In JSON on stdout as in words on stderr; and an old terminal shows what it can."""
    explained = ("route --explain release", "😀 abc")
    assert shop.run(*explained, PYTHONIOENCODING="latin-1").code == 0
    out = tmp_path / os.fsdecode(b"caf\xe9.stats")
    done = shop.run(
        f"client prepare law.jsonl --domain law --json --encoder {shop.encoder} --out",
        out,
        PYTHONIOENCODING="utf-8:strict",
    ).good
    assert done.json["samples"] == load_prepared(out).statistics.mass
