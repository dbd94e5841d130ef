"""Contextual encoders: their cards, their scale, where their models are, and how windows are laid out for them."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ridgeway.common.base.errors import EncoderError, FormatError, InputError, StatisticsError
from ridgeway.common.base.files import cache_folder
from ridgeway.common.base.settings import DEFAULT, FEATURE_LIMIT, Sampling
from ridgeway.common.encoding import encoder_sources
from ridgeway.common.encoding.encoder_files import load_encoder, save_encoder
from ridgeway.common.encoding.encoder_sources import cached_encoders, find_by_fingerprint, find_encoder
from ridgeway.common.encoding.model_files import model_files
from ridgeway.common.encoding.model_rows import Frame
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.transformer import measured, one_thread
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder, check_sampling, needs_table, usual_sampling
from ridgeway.common.encoding.windows import longest_window
from tests.support.making import prepared
from tests.support.tiny import tiny_encoder
from tests.support.tiny_models import (
    KINDS,
    SHAPE,
    WIDTH,
    loaded,
    make_model,
    plain_states,
    tiny_contextual,
    with_surroundings,
)

lengths = st.lists(st.integers(0, 70), max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "bert")


def found(folder: Path) -> ContextualEncoder:
    encoder = find_encoder(f"contextual:{folder}")
    assert isinstance(encoder, ContextualEncoder)
    return encoder


# Fingerprint


def test_the_fingerprint_depends_on_everything_that_changes_a_feature(folder: Path, tmp_path: Path) -> None:
    """Weights, config, tokenizer, width and scale: any other of these is another encoder. Its name is not."""
    encoder = found(folder)
    name, definition, width, scale, weights = "x", encoder.definition, encoder.width, encoder.scale, encoder.weights
    others = [
        ContextualEncoder(name, definition.replace(b'"<unk>"', b'"<odd>"'), width, scale, weights),
        ContextualEncoder(name, definition, width + 1, scale, weights),
        ContextualEncoder(name, definition, width, scale * 2, weights),
        ContextualEncoder(name, definition, width, scale, weights[::-1]),
        found(make_model(tmp_path / "seed", seed=1)),
        found(make_model(tmp_path / "config", layer_norm_eps=1e-5)),
    ]
    assert len({encoder.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1
    assert ContextualEncoder(name, definition, width, scale, weights).fingerprint == encoder.fingerprint


def test_one_changed_weight_is_another_encoder(folder: Path, tmp_path: Path) -> None:
    """Every byte of the weights is in the hash, and a hash is taken again when a file changes."""
    other = shutil.copytree(folder, tmp_path / "other")
    assert found(other).fingerprint == found(folder).fingerprint
    tensors = load_file(other / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][3, 3] += 1e-3
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    assert found(other).fingerprint != found(folder).fingerprint


def test_what_a_config_says_of_its_making_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """The library's version and the type it was saved in are no part of a model."""
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_bytes())
    (other / "config.json").write_text(json.dumps({**config, "transformers_version": "9", "_name_or_path": "x"}))
    assert found(other).fingerprint == found(folder).fingerprint


def test_a_sharded_model_is_read_whole(folder: Path, tmp_path: Path) -> None:
    """All files that the index names are hashed and loaded; one that is missing is named."""
    other = shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    (other / "model.safetensors").unlink()
    places = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(sorted(tensors))}
    for shard in set(places.values()):
        own = {name: tensors[name] for name in tensors if places[name] == shard}
        save_file(own, other / shard, metadata={"format": "pt"})
    (other / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert found(other).scale == found(folder).scale
    assert len(model_files(str(other)).weights) == 2
    (other / "model-1.safetensors").unlink()
    with pytest.raises(EncoderError, match="lacks model-1"):
        find_encoder(f"contextual:{other}")


# Scale


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_is_a_power_of_two_that_leaves_room(tmp_path: Path, kind: str) -> None:
    """No hidden state of the walk is larger than half the bound, and machines cannot disagree by a rounding error."""
    encoder = tiny_contextual(tmp_path / kind, kind)
    assert math.frexp(encoder.scale)[0] == 0.5
    states = plain_states(tmp_path / kind, list(range(2, 40))).numpy()
    assert np.abs(states).max() <= FEATURE_LIMIT * encoder.scale
    assert encoder.width == WIDTH
    assert measured(model_files(str(tmp_path / kind)), encoder.tokenizer) == (encoder.width, encoder.scale)


# Cards, cache, folders


def test_a_model_is_measured_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time the card comes out of the user's cache, by its source or by its fingerprint."""
    first = found(folder)

    def no_conversion(*_: object) -> ContextualEncoder:
        raise AssertionError("converted again")

    monkeypatch.setattr(encoder_sources, "converted", no_conversion)
    assert found(folder).fingerprint == first.fingerprint
    assert find_by_fingerprint(first.fingerprint, "local").fingerprint == first.fingerprint
    assert [card["kind"] for card in cached_encoders()] == ["contextual"]


def test_a_saved_encoder_is_the_same_encoder_and_holds_no_path(folder: Path, tmp_path: Path) -> None:
    """What is carried to others is the card and the tokenizer; the model is found by its hash."""
    encoder = found(folder)
    save_encoder(encoder, tmp_path / "saved")
    again = load_encoder(tmp_path / "saved")
    assert (again.fingerprint, again.name, again.width, again.scale) == (
        encoder.fingerprint,
        "local",
        encoder.width,
        encoder.scale,
    )
    assert isinstance(again, ContextualEncoder)
    assert again.model().folder == folder.resolve()
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"encoder.json", "tokenizer.json"}
    assert str(folder) not in (tmp_path / "saved" / "encoder.json").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": 0.5}, "a file was changed"),
        ({"weights": "0" * 64}, "a file was changed"),
        ({"kind": "spiritual"}, "of kind 'spiritual'"),
        ({"width": "wide"}, "damaged"),
        ({"width": -1}, "positive scale, not -1"),
    ],
)
def test_a_changed_card_is_noticed(folder: Path, tmp_path: Path, change: dict[str, object], words: str) -> None:
    """A card is held against its fingerprint."""
    save_encoder(found(folder), tmp_path / "saved")
    path = tmp_path / "saved" / "encoder.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises((FormatError, EncoderError), match=words):
        load_encoder(tmp_path / "saved")


def test_an_encoder_is_not_saved_over_something_else(folder: Path, encoder: TableEncoder, tmp_path: Path) -> None:
    """Neither over a foreign folder nor over an encoder of the other kind."""
    save_encoder(encoder, tmp_path / "table")
    with pytest.raises(EncoderError, match="in use"):
        save_encoder(found(folder), tmp_path / "table")
    save_encoder(found(folder), tmp_path / "card")
    with pytest.raises(EncoderError, match="in use"):
        save_encoder(encoder, tmp_path / "card")


def test_a_model_that_is_not_here_is_asked_for(folder: Path, tmp_path: Path) -> None:
    """Where it was seen, in a folder that is named, or one sentence; never another model."""
    place = shutil.copytree(folder, tmp_path / "model")
    encoder = found(place)
    moved = place.rename(tmp_path / "moved")
    with pytest.raises(EncoderError, match=r"is not on this machine; .* --model DIR"):
        encoder.model()
    with pytest.raises(EncoderError, match="has other weights"):
        encoder.model(make_model(tmp_path / "other", seed=5))
    assert encoder.model(moved).folder == moved
    assert encoder.model().folder == moved.resolve()


def test_a_model_that_changed_where_it_lay_is_not_used(folder: Path, tmp_path: Path) -> None:
    """The hash is taken again when a file's time or size differs."""
    place = shutil.copytree(folder, tmp_path / "model")
    encoder = found(place)
    shutil.rmtree(place)
    make_model(place, seed=6)
    with pytest.raises(EncoderError, match="is not on this machine"):
        encoder.model()


def test_a_file_that_keeps_its_size_and_time_is_hashed_again_all_the_same(folder: Path, tmp_path: Path) -> None:
    """Copies that keep times, and images that have none, do not pass off other weights."""
    place = shutil.copytree(folder, tmp_path / "model")
    encoder, weights = found(place), place / "model.safetensors"
    before, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size
    with pytest.raises(EncoderError, match="is not on this machine"):
        encoder.model()


def test_a_model_that_is_only_half_there_is_asked_for(folder: Path, tmp_path: Path) -> None:
    """What was seen before and is no longer whole is as good as gone."""
    place = shutil.copytree(folder, tmp_path / "model")
    encoder = found(place)
    (place / "config.json").unlink()
    with pytest.raises(EncoderError, match="--model DIR"):
        encoder.model()


def test_a_table_is_asked_for_in_one_sentence(folder: Path, encoder: TableEncoder) -> None:
    """What works on tables alone says so."""
    assert needs_table(encoder, "the audit") is encoder
    with pytest.raises(EncoderError, match="the audit works on an encoder's table"):
        needs_table(found(folder), "the audit")


def test_statistics_name_a_model_on_the_hub_and_never_a_path(encoder: TableEncoder) -> None:
    """What came from a folder is called local."""
    assert prepared("law", encoder, 1, name="contextual:some-body/some.model").encoder_name.startswith("contextual:")
    for path in ("contextual:/models/minilm", "contextual:a/b/c", "contextual:"):
        with pytest.raises(StatisticsError, match="not one that Ridgeway writes"):
            prepared("law", encoder, 1, name=path)


# Bad input


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def adapted(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def elsewhere(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "other.safetensors"}))


def damaged(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "abacus"}')


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def poor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def mad(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.dense.weight"][:] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (without("config.json"), "has no config.json"),
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("model.safetensors"), "pickled ones are never read"),
        (pickled, "pickled ones are never read"),
        (adapted, "holds an adapter"),
        (elsewhere, "names weights of its own"),
        (damaged, "config.json is damaged"),
        (unknown, "transformers cannot load"),
        (cut, "transformers cannot load"),
        (poor, r"lack weights of the model, such as encoder\.layer\.1"),
        (mad, "no finite numbers"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_sentence(
    folder: Path, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    """What is wrong, and where."""
    other = shutil.copytree(folder, tmp_path / "other")
    harm(other)
    with pytest.raises(EncoderError, match=words) as caught:
        find_encoder(f"contextual:{other}")
    assert "\n" not in str(caught.value)


def test_a_model_that_is_nowhere_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder, no hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match="there is no folder"):
        find_encoder("contextual:./nowhere")
    with pytest.raises(EncoderError, match="not on this machine and the model hub cannot be reached"):
        find_encoder("contextual:no-such-organisation/no-such-model")


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """The card can be read without; the model cannot be run."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EncoderError, match=rf"needs the package {package}; install ridgeway\[contextual\]"):
        find_encoder(f"contextual:{folder}")


def test_a_window_that_the_model_cannot_read_is_refused_before_any_work(tmp_path: Path) -> None:
    """The rest that joins a window and the special tokens count."""
    model = loaded(tiny_contextual(tmp_path / "model"))
    assert model.frame(105).window == 105
    with pytest.raises(EncoderError, match="reads 160 tokens at once, and windows of 107 need up to 162"):
        model.frame(107)


def test_kin_of_roberta_read_fewer_tokens_than_they_have_positions(tmp_path: Path) -> None:
    """Their positions begin behind the padding's own; the longest row is still one that they can read."""
    library: Any = transformers
    options = {**SHAPE, "pad_token_id": 1, "max_position_embeddings": 98}
    library.RobertaModel(library.RobertaConfig(**options)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(with_surroundings())
    encoder = found(tmp_path)
    model = loaded(encoder)
    with pytest.raises(EncoderError, match="reads 96 tokens at once"):
        model.frame(64)
    frame = model.frame(62)
    ids = np.full(92, 3, dtype=np.int32)
    for length in (62, 80, 92):
        [rows] = frame.rows(ids[:length], np.array([length]))
        assert np.isfinite(model.means(rows).numpy()).all()


def test_a_model_that_reads_few_tokens_is_measured_all_the_same(tmp_path: Path) -> None:
    """It needs to read the windows of the measurement; smaller windows can then be chosen."""
    encoder = found(make_model(tmp_path / "short", max_position_embeddings=66))
    assert loaded(encoder).frame(32).window == 32


def test_threads_that_keep_torch_to_themselves_leave_it_as_it_was() -> None:
    """However they overlap."""
    before, inside = torch.get_num_threads(), Barrier(2)

    def work() -> int:
        with one_thread():
            inside.wait()
            return torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert [each.result() for each in [pool.submit(work), pool.submit(work)]] == [1, 1]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


# Windows


@given(lengths=lengths, window=st.integers(1, 40), before=st.integers(0, 2), after=st.integers(0, 2))
def test_rows_hold_every_token_once_and_in_its_window(lengths: list[int], window: int, before: int, after: int) -> None:
    """Taken apart again, rows give back the documents; around each window stand the special tokens, then padding."""
    frame = Frame(tuple(range(901, 901 + before)), tuple(range(951, 951 + after)), window, 10_000)
    ids = np.arange(1, sum(lengths) + 1, dtype=np.int32)
    windows: dict[int, list[int]] = {}
    for rows in frame.rows(ids, np.array(lengths, dtype=np.int64)):
        assert rows.ids.shape == (len(rows), rows.shape.length)
        for row, count, place in zip(rows.ids.tolist(), rows.counts.tolist(), rows.places.tolist(), strict=True):
            assert (tuple(row[:before]), tuple(row[before + count :][:after])) == (frame.prefix, frame.suffix)
            rest = row[before + count + after :]
            assert not any(rest)
            assert bool(rest) == rows.shape.padded
            windows[place] = row[before : before + count]
        assert rows.ids[rows.own].tolist() == [each for place in rows.places.tolist() for each in windows[place]]
    assert [each for place in sorted(windows) for each in windows[place]] == ids.tolist()
    assert max(map(len, windows.values()), default=0) <= longest_window(window)


@given(count=st.integers(1, 300), window=st.integers(1, 200))
def test_a_shape_depends_on_the_length_alone_and_is_never_too_long(count: int, window: int) -> None:
    """Windows of the usual length have no padding; all others have some, unless the model can read no more."""
    shape = Frame((7,), (8,), window, 302).shape(count)
    assert count + 2 <= shape.length <= 302
    assert shape.padded == (shape.length > count + 2)
    assert shape.padded or count == window or shape.length == 302


def test_nothing_is_written_outside_the_cache(folder: Path) -> None:
    """A model's folder is read and left as it was."""
    before = sorted(path.name for path in folder.iterdir())
    found(folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert {path.name for path in cache_folder().iterdir()} == {"encoders", "hashes", "models", "sources"}


def test_a_model_reads_plain_windows_and_no_others(folder: Path) -> None:
    """Whole documents and short windows apart are for tables; a table takes any."""
    contextual = found(folder)
    assert usual_sampling(contextual) == Sampling(window=64)
    check_sampling(contextual, Sampling(window=8))
    with pytest.raises(InputError, match="is not for a contextual encoder"):
        check_sampling(contextual, DEFAULT.sampling)
    check_sampling(tiny_encoder(), DEFAULT.sampling)
    assert usual_sampling(tiny_encoder()) == DEFAULT.sampling
