"""The paper's data sets by name: every source of every preset is read by the real library, from folders that stand in
for the hub."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.simulations.experiments.hub_datasets import (
    _MIN_PIECE_CHARACTERS,
    _PRESETS,
    MAX_CHARACTERS,
    HubSource,
    preset_dataset,
    stream,
)
from tests.support.waiting import processes_per_core

SOURCES = {source for preset in _PRESETS.values() for own in preset.values() for source in own.train + own.test}
RECORDS = 60


def row(source: HubSource, number: int) -> dict[str, Any]:
    """A record as the source has it; the text names where it comes from."""
    return {source.field: f"{source.repo} {source.config} {source.split} number {number}", "extra": number}


def rows(source: HubSource, seed: int) -> Iterator[dict[str, Any]]:
    """A loader that needs no library: every record twice, as some sets have them."""
    yield from ({**row(source, seed + number // 2), "block": number // 8} for number in range(2 * RECORDS))


def lines(source: HubSource) -> bytes:
    return "".join(json.dumps(row(source, number)) + "\n" for number in range(RECORDS)).encode()


def settle(hub: Path, source: HubSource) -> None:
    """Put what the source names where the library looks for it."""
    folder = hub / source.repo
    if source.archive:
        _archive(folder / source.archive)
    else:
        path = folder / (source.config or "default") / f"{source.split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines(source))
        _describe(folder)


def _archive(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for part in ("test", "train", "valid"):
            content = "".join(f"{name} {part} {number} {'word ' * 400}\n\n" for number in range(300)).encode()
            info = tarfile.TarInfo(f"{name}/{part}.txt")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def _describe(folder: Path) -> None:
    """The card of a data set, which says where the splits of each configuration are."""
    card = ["---", "configs:"]
    for config in sorted(path for path in folder.iterdir() if path.is_dir()):
        card += [f"- config_name: {config.name!r}", "  data_files:"]
        card += [f"  - {{split: {path.stem}, path: {config.name}/{path.name}}}" for path in sorted(config.iterdir())]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every source of every preset, small."""
    folder = tmp_path_factory.mktemp("hub")
    for source in sorted(SOURCES, key=repr):
        settle(folder, source)
    return folder


@pytest.mark.parametrize("name", _PRESETS)
def test_every_preset_is_read_by_the_real_library(name: str, hub: Path) -> None:
    """Names, configurations, splits, files and fields are such that `datasets` reads them; no text is on both sides."""
    found = preset_dataset(name, most_train=30, most_test=12, seed=3, load=partial(stream, root=str(hub)))
    assert found.name == name
    assert found.domains == tuple(_PRESETS[name])
    assert "hub" in found.source
    for domain in found.domains:
        assert 3 <= len(found.test[domain]) <= 12, domain
        assert 12 <= len(found.train[domain]) <= 30, domain
        assert not set(found.train[domain]) & {text for own in found.test.values() for text in own}
        assert len(set(found.train[domain])) == len(found.train[domain])


def test_neighbouring_pieces_of_an_archive_stay_on_one_side(hub: Path) -> None:
    """What stands in one article is not learnt from on one side and asked for on the other."""
    found = preset_dataset("clm", most_train=400, most_test=400, seed=1, load=partial(stream, root=str(hub)))
    records = {
        record["text"]: record["block"]
        for record in stream(HubSource("machelreid/m2d2", archive="data/cs_l1.tar.gz"), 1, root=str(hub))
    }
    assert all(len(text) >= _MIN_PIECE_CHARACTERS for text in records)
    blocks = {
        name: {records[text] for text in side["coding"]}
        for name, side in zip("ab", (found.train, found.test), strict=True)
    }
    assert blocks["a"]
    assert blocks["b"]
    assert not blocks["a"] & blocks["b"]


def test_training_texts_that_are_test_texts_are_dropped_and_long_ones_cut() -> None:
    """Also where they stand in another domain's test, and although a record comes twice."""

    def load(source: HubSource, seed: int) -> Iterator[dict[str, Any]]:
        yield {source.field: "the very same question"}
        yield {source.field: "x" * (3 * MAX_CHARACTERS)}
        yield from rows(source, seed) if source.split == "train" else ()

    found = preset_dataset("reasoning", most_train=10, most_test=2, load=load)
    assert found.test["math"] == ("the very same question", "x" * MAX_CHARACTERS)
    assert all(len(own) == 8 and not set(own) & set(found.test["math"]) for own in found.train.values())


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([{"other": "field"}], "has no field"),
        ([], "has no text left"),
        ([{"query": "  "}, {"query": None}], "has no text left"),
    ],
)
def test_a_data_set_that_has_changed_is_told_in_one_sentence(records: list[dict[str, Any]], sentence: str) -> None:
    """Which one, and what is missing."""

    def load(source: HubSource, seed: int) -> Iterator[dict[str, Any]]:
        yield from records if source.field == "query" else rows(source, seed)

    with pytest.raises(CorpusError, match=sentence):
        preset_dataset("reasoning", most_train=3, most_test=3, load=load)


def test_a_preset_that_does_not_exist_is_refused() -> None:
    """With the names of those that do."""
    with pytest.raises(InputError, match="there is no preset 'law'; there are clm, reasoning"):
        preset_dataset("law")


def test_without_a_network_one_sentence_comes_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is, that a network is needed, and what to do instead; not after minutes of trying again."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    begin = time.monotonic()
    with pytest.raises(CorpusError, match="'clm' is on the Hugging Face hub, which does not answer") as raised:
        preset_dataset("clm")
    assert time.monotonic() - begin < 20 * processes_per_core()
    assert str(raised.value).endswith("run this where there is a network, or give texts of your own with --data DIR")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r"presets need the package datasets; install ridgeway\[hub\]"):
        preset_dataset("clm")
