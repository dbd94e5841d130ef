"""Transformers as sentence encoders: a small BERT in a folder, by torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.client.sums.gpu_gram import GpuGram
from ridgeway.common.base.errors import EncoderError, RidgewayError, StatisticsError
from ridgeway.common.base.files import cache_folder
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling
from ridgeway.common.routing.decision import SENTENCES, TABLE
from ridgeway.common.routing.router import Router
from ridgeway.common.text import sentence_transformer
from ridgeway.common.text.encoder_files import (
    absolute_source,
    find_by_fingerprint,
    find_encoder,
    load_encoder,
    save_encoder,
)
from ridgeway.common.text.model_files import ModelFiles
from ridgeway.common.text.sentence_encoder import (
    find_sentence_encoder,
    named_sentence_encoder,
)
from ridgeway.common.text.sentence_network import SENTENCE_NORM
from ridgeway.common.text.sentence_source import find_transformer
from ridgeway.common.text.sentence_transformer import (
    ROUNDING_STEP,
    TorchModel,
    TransformerEncoder,
    on_grid,
)
from ridgeway.common.text.table_encoder import (
    of_tokens_alone,
    split_sentence,
    with_sentences,
)
from ridgeway.serving.routing_service import ReleaseSource
from tests.support.making import prepared
from tests.support.serving import (
    CASCADE_DOMAINS,
    cascade_release,
    prompt_for,
    unsure_prompts,
)
from tests.support.tiny import tiny_encoder
from tests.support.tiny_models import WIDTH, make_model

TEXTS = [
    "bake the bread",
    "",
    "boil an egg",
    "a train to rome",
    "visa for china",
    "x" * 300,
]
MAX_READ = 157
"""How many tokens of a text the small model reads."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def encoder(folder: Path) -> TransformerEncoder:
    return find_transformer(str(folder))


def vectors(encoder: TransformerEncoder, texts: list[str]) -> NDArray[np.int16]:
    return encoder.vectors(*encoder.tokenizer.encode_many(texts))


def plain_means(
    folder: Path, encoder: TransformerEncoder, texts: list[str]
) -> NDArray[np.float64]:
    """From the definition, in float64: the mean over all tokens, special ones with them; length
    one.
    """
    model = transformers.AutoModel.from_pretrained(str(folder)).double().eval()
    ids, lengths = encoder.tokenizer.encode_many(texts)
    means = []
    for part in np.split(ids, np.cumsum(lengths)[:-1]):
        with torch.no_grad():
            read = torch.tensor([[0, *part[:MAX_READ].tolist(), 0]])
            hidden = model(read).last_hidden_state[0]
        means.append((hidden.mean(0) / hidden.mean(0).norm()).numpy())
    return np.stack(means)


# Vectors


def test_a_vector_is_the_nearest_on_the_grid_to_the_models_mean(
    folder: Path, encoder: TransformerEncoder
) -> None:
    """Within the bound and of about the public norm; half a step is the most that rounding moves a
    number.
    """
    texts = [text for text in TEXTS if text]
    made = vectors(encoder, texts)
    assert not (made % ROUNDING_STEP).any()
    exact = SENTENCE_NORM * plain_means(folder, encoder, texts)
    exact = exact.clip(-FEATURE_LIMIT, FEATURE_LIMIT)
    assert np.abs(made - exact).max() < ROUNDING_STEP / 2 + 0.1
    assert made.shape == (len(texts), WIDTH)


def test_a_vector_depends_on_its_text_alone(encoder: TransformerEncoder) -> None:
    """Not on those beside it, nor on threads."""
    together = vectors(encoder, TEXTS)
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda text: vectors(encoder, [text])[0], TEXTS))
    assert (together == np.stack(alone)).all()
    assert (vectors(encoder, TEXTS[::-1]) == together[::-1]).all()


def test_a_text_without_tokens_has_the_zero_vector(encoder: TransformerEncoder) -> None:
    """And no texts have none."""
    made = vectors(encoder, TEXTS)
    assert [bool(row.any()) for row in made] == [bool(text) for text in TEXTS]
    none = encoder.vectors(np.empty(0, np.int32), np.empty(0, np.int64))
    assert none.shape == (0, WIDTH)


def test_an_overlong_text_is_cut_to_what_the_model_reads(
    encoder: TransformerEncoder,
) -> None:
    """160 positions, less one that kin of RoBERTa would not use, less two special tokens."""
    ids, lengths = encoder.tokenizer.encode_many(["ab" * 300])
    assert lengths.tolist() == [600]
    whole = encoder.vectors(ids, lengths)
    assert (whole == encoder.vectors(ids[:MAX_READ], np.array([MAX_READ]))).all()
    fewer = MAX_READ - 1
    assert (whole != encoder.vectors(ids[:fewer], np.array([fewer]))).any()


def test_passes_of_many_texts_give_the_same_vectors(
    encoder: TransformerEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: texts of one length are read together, as many as a pass has room for."""
    texts = [*TEXTS, "bake the soups", "peel the bread"]
    expected = vectors(encoder, texts)
    sizes = []

    class Counting(TorchModel):
        def __init__(self, files: ModelFiles, device: str) -> None:
            super().__init__(files, "cpu")
            self.pass_tokens = 40

        def means(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
            sizes.append(ids.shape)
            return super().means(ids)

    monkeypatch.setattr(sentence_transformer, "_models", {})
    monkeypatch.setattr(sentence_transformer, "TorchModel", Counting)
    made = encoder.on_device("elsewhere")(*encoder.tokenizer.encode_many(texts))
    assert sorted(sizes) == [(1, 13), (1, 17), (1, 159), (2, 16), (2, 16)]
    assert np.abs(made.astype(int) - expected).max() <= ROUNDING_STEP


def test_a_number_beyond_the_bound_is_cut_and_none_at_all_is_an_error() -> None:
    assert on_grid(np.array([[3.0, 0.0], [3.0, 4.0]])).tolist() == [
        [FEATURE_LIMIT, 0],
        [FEATURE_LIMIT, FEATURE_LIMIT],
    ]
    for wrong in ([[np.nan, 1.0]], [[0.0, 0.0]], [[np.inf, 1.0]]):
        with pytest.raises(EncoderError, match="NaN or infinity"):
            on_grid(np.array(wrong))


# Fingerprints and names


def test_everything_that_changes_a_vector_changes_the_fingerprint(
    folder: Path, encoder: TransformerEncoder, tmp_path: Path
) -> None:
    """Weights, config, tokenizer, and how much is read; not where the folder lies, nor who wrote
    the config.
    """

    def changed(name: str, change: Callable[[Path], None]) -> str:
        other = shutil.copytree(folder, tmp_path / name)
        change(other)
        return find_transformer(str(other)).fingerprint

    def heavier(tensors: dict[str, torch.Tensor]) -> None:
        tensors["encoder.layer.0.output.dense.bias"][0] += 1

    def respelt(other: Path) -> None:
        definition = json.loads((other / "tokenizer.json").read_text())
        vocabulary = definition["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        (other / "tokenizer.json").write_text(json.dumps(definition))

    same = {
        changed("copy", lambda other: None),
        changed("renamed", configured(transformers_version="1")),
    }
    assert same == {encoder.fingerprint}
    others = [
        changed("heavier", reweighted(heavier)),
        changed("respelt", respelt),
        changed("gelu", configured(hidden_act="relu")),
        replace(encoder, max_tokens=9).fingerprint,
    ]
    assert len({encoder.fingerprint, *others}) == 5


def test_an_encoder_is_named_without_its_path(
    folder: Path, encoder: TransformerEncoder, tmp_path: Path
) -> None:
    """In its name, in its saved folder, and in statistics; a path in a name is refused."""
    save_encoder(tiny_encoder(), tmp_path / "tiny")
    joined = find_encoder(f"dir:{tmp_path / 'tiny'}+words+sentence:{folder}")
    assert (joined.name, joined.sentence_encoder) != ("", None)
    assert joined.name == "tiny+words+sentence:local"
    assert of_tokens_alone(joined).name == "tiny"
    assert joined.width == joined.table_width + WIDTH + 1024
    save_encoder(joined, tmp_path / "saved")
    assert str(folder) not in (tmp_path / "saved" / "encoder.json").read_text()
    assert load_encoder(tmp_path / "saved").fingerprint == joined.fingerprint
    assert prepared("law", joined, 1).encoder_name == joined.name
    with pytest.raises(StatisticsError, match="name or fingerprint is invalid"):
        prepared("law", joined, 1, name=f"tiny+sentence:{folder}")


def test_a_source_means_the_same_from_any_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both folders in it, and nothing else, become absolute."""
    monkeypatch.chdir(folder.parent)
    for source, absolute in (
        ("smollm2+words+sentence:bert", f"smollm2+words+sentence:{folder}"),
        ("dir:bert+sentence:bert", f"dir:{folder}+sentence:{folder}"),
        ("dir:bert+words+sentence", f"dir:{folder}+words+sentence"),
    ):
        assert absolute_source(source) == absolute
    for source in (
        "smollm2+words+sentence",
        "smollm2",
        "smollm2+sentence:other",
        "hf:a/b+sentence",
    ):
        assert absolute_source(source) == source


@pytest.mark.parametrize(
    ("name", "table", "reader"),
    [
        ("smollm2+words+sentence:DIR", "smollm2+words", "DIR"),
        ("smollm2+sentence", "smollm2", ""),
        ("smollm2+words", "smollm2+words", None),
        ("dir:a+sentences", "dir:a+sentences", None),
    ],
)
def test_names_are_taken_apart(name: str, table: str, reader: str | None) -> None:
    assert split_sentence(name) == (table, reader)


# Where a model is found


def named(encoder: TransformerEncoder) -> TransformerEncoder:
    local = named_sentence_encoder("local", encoder.fingerprint)
    assert isinstance(local, TransformerEncoder)
    return local


def test_a_model_that_is_not_here_is_asked_for(
    folder: Path,
    encoder: TransformerEncoder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A variable names its folder; the folder of another model will not do."""
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "empty"))
    missing = "a model in a folder, and not here; set RIDGEWAY_SENTENCE_MODEL"
    with pytest.raises(EncoderError, match=missing):
        named(encoder)
    other = make_model(tmp_path / "other", seed=1)
    monkeypatch.setenv("RIDGEWAY_SENTENCE_MODEL", str(other))
    words = f"its sentence encoder is {encoder.fingerprint[:12]}, .* the one in .* is "
    with pytest.raises(EncoderError, match=words):
        named(encoder)
    monkeypatch.setenv("RIDGEWAY_SENTENCE_MODEL", str(folder))
    assert named(encoder).fingerprint == encoder.fingerprint


def test_a_model_that_changed_where_it_lay_is_not_used(
    folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "model")
    make_model(other, seed=2)
    encoder = find_transformer(str(other))
    make_model(other, seed=3)
    with pytest.raises(
        EncoderError, match=f"its sentence encoder is {encoder.fingerprint[:12]}"
    ):
        named(encoder)


def test_statistics_of_a_local_model_ask_for_its_source(
    encoder: TransformerEncoder,
) -> None:
    joined = with_sentences(tiny_encoder(), encoder)
    with pytest.raises(EncoderError, match=r"use --encoder smollm2\+sentence:DIR"):
        find_by_fingerprint(joined.fingerprint, "smollm2+sentence:local")


# Sums and routers


def test_sums_are_those_of_windows_on_either_path(encoder: TransformerEncoder) -> None:
    """In one go, in parts, and by the code of GPUs, on the CPU."""
    joined = with_sentences(tiny_encoder(), encoder)
    assert joined.sentences
    sampling = Sampling(4, stride=8, units=5, opening=3)
    tokens = joined.read(TEXTS)
    here = accumulators(joined.table, sampling, joined.words, joined.sentences)
    there = accumulators(
        joined.table,
        sampling,
        joined.words,
        joined.sentences.on_device("cpu"),
        partial(GpuGram, device="cpu"),
    )
    whole, on_device, parts = here(), there(), [here(), here()]
    whole.add(tokens)
    on_device.add(tokens)
    for part, texts in zip(parts, (TEXTS[:2], TEXTS[2:]), strict=True):
        part.add(joined.read(texts))
    expected = whole.statistics(whole.state()).gram
    assert expected.any()
    assert (on_device.statistics(on_device.state()).gram == expected).all()
    added = np.sum([part.statistics(part.state()).gram for part in parts], axis=0)
    assert (added == expected).all()


def test_a_release_is_served_by_its_model(
    encoder: TransformerEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model decides what the table is unsure of, one prompt as many; serving loads it before
    any prompt comes.
    """
    cascade_release(tmp_path / "release", CASCADE_DOMAINS, encoder)
    router = Router.load(tmp_path / "release")
    prompts = [*unsure_prompts(9), prompt_for("law", CASCADE_DOMAINS)]
    decided = router.route_many(prompts)
    assert [decision.router for decision in decided] == [SENTENCES] * 9 + [TABLE]
    assert decided == [router.route(prompt) for prompt in prompts]
    monkeypatch.setattr(sentence_transformer, "_models", {})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EncoderError, match="needs the package torch"):
        ReleaseSource(tmp_path / "release").open()


# Models that cannot be used


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def adapted(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def configured(**changes: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    return write


def damaged(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def reweighted(
    change: Callable[[dict[str, torch.Tensor]], object],
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return write


LAST_WEIGHTS = "encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (without("config.json"), "has no config.json"),
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("model.safetensors"), "pickles are never read"),
        (pickled, "pickles are never read"),
        (adapted, "contains an adapter"),
        (configured(transformers_weights="other.safetensors"), "names other weights"),
        (
            configured(auto_map={"AutoModel": "code.Model"}),
            "has custom code, which is never run",
        ),
        (configured(is_encoder_decoder=True), "not a BERT-like encoder"),
        (configured(hidden_size=None), "not a BERT-like encoder"),
        (
            configured(hidden_size=2048),
            "has 2,048 dimensions, and at most 1,024 are supported",
        ),
        (configured(max_position_embeddings=3), "too few for any text"),
        (damaged, "config.json is corrupt"),
        (configured(model_type="abacus"), "transformers cannot load"),
        (cut, "transformers cannot load"),
        (
            reweighted(lambda tensors: tensors.pop(LAST_WEIGHTS)),
            r"model weights are missing in .*, such as encoder\.layer\.1",
        ),
        (
            reweighted(lambda tensors: tensors[LAST_WEIGHTS].fill_(torch.nan)),
            "NaN or infinity",
        ),
    ],
)
def test_a_model_that_cannot_be_used_is_one_sentence(
    folder: Path, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    """What is wrong, and where."""
    other = shutil.copytree(folder, tmp_path / "other")
    harm(other)
    with pytest.raises(EncoderError, match=words) as caught:
        vectors(find_transformer(str(other)), ["bake"])
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_one_sentence() -> None:
    """Nothing is fetched from a hub."""
    for name in ("other", "./nowhere", "sentence-transformers/all-MiniLM-L6-v2"):
        words = f"there is no sentence encoder '{name}'; use the folder of a model"
        with pytest.raises(EncoderError, match=words):
            find_sentence_encoder(name)


def test_what_was_made_with_minilm_is_not_read(
    encoder: TransformerEncoder, tmp_path: Path
) -> None:
    """Its name, its statistics and its releases: one sentence says what to use instead."""
    cascade_release(
        tmp_path / "release", CASCADE_DOMAINS, replace(encoder, name="minilm")
    )
    for use in (
        lambda: find_encoder("smollm2+words+sentence:minilm"),
        lambda: find_by_fingerprint("0" * 64, "smollm2+sentence:minilm"),
        lambda: Router.load(tmp_path / "release"),
    ):
        with pytest.raises(
            RidgewayError,
            match=r"does not read sentences by minilm; use \+sentence, or \+sentence:DIR",
        ):
            use()


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """The encoder is known without; its model cannot be run."""
    local = find_transformer(str(folder))
    monkeypatch.setattr(sentence_transformer, "_models", {})
    monkeypatch.setitem(sys.modules, package, None)
    words = rf"needs the package {package}; install ridgeway\[transformers\]"
    with pytest.raises(EncoderError, match=words):
        vectors(local, ["a"])


def test_torch_is_imported_when_the_first_text_comes(folder: Path) -> None:
    """Finding the encoder imports neither torch nor transformers."""
    program = (
        "import sys\nfrom ridgeway.common.text.sentence_encoder import find_sentence_encoder\n"
        f"encoder = find_sentence_encoder({str(folder)!r})\n"
        "read = encoder.tokenizer.encode_many(['a'])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
        "encoder.vectors(*read)\nassert 'torch' in sys.modules"
    )
    environment = os.environ | {"RIDGEWAY_CACHE": str(cache_folder())}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
