"""The model that every expert starts from, SmolLM2 out of its GGUF file or another out of a folder;
and how it is
trained and scores texts: rows of ids in, training losses and log-likelihoods out.

The one place where experts run through a model. Imports gguf, torch and transformers when a model
is loaded.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import EncoderError, first_line
from ridgeway.common.encoding.encoder_sources import (
    SMOLLM2_SHA256,
    find_encoder,
    smollm2_file,
)
from ridgeway.common.encoding.model_files import imported, model_files
from ridgeway.common.encoding.tokenizer import Ids, plain_definition
from ridgeway.common.encoding.transformer import quiet

if TYPE_CHECKING:
    import torch

NAME = "SmolLM2-135M-Instruct"
CONFIG = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "vocab_size": "llama.vocab_size",
}
"""Hugging Face's names of the fields of a GGUF file, for models of Llama's kind."""
IGNORED_LABEL = -100
"""The label of what is not predicted: padding."""
MAX_PASS_TOKENS = {"cpu": 512, "cuda": 16_384}
Weights = list["torch.Tensor"]


@dataclass(frozen=True, slots=True)
class ExpertRecipe:
    """
    tokens:    that an expert is trained on: as many rounds through its text as that takes.
    length:    of a training sequence, in tokens. batch: sequences a step.
    layers:    the last layers, with the norm behind them, that are trained; 0 trains every
               parameter.
    rates:     learning rates: the one that does best on held-out text is taken, where there are
               several.
    trial:     training tokens of an expert while a rate is sought. held: tokens of held-out text a
               domain, then.
    documents: test texts of a domain at most; 0 takes all. longest: tokens after which a test text
               is cut.
    """

    tokens: int
    length: int
    batch: int
    layers: int
    rates: tuple[float, ...]
    trial: int
    held: int
    documents: int
    longest: int
    warmup: float = 0.1
    decay: float = 0.01
    clip: float = 1.0

    def words(self) -> str:
        """What is trained on what, in one sentence."""
        parts = f"the last {self.layers} layers" if self.layers else "all parameters"
        tests = (
            f"at most {self.documents} test texts a domain"
            if self.documents
            else "all test texts"
        )
        return (
            f"{parts} trained on {self.tokens:,} tokens a domain in sequences of"
            f" {self.length}, {self.batch} a step; {tests}, cut at {self.longest}"
            " tokens"
        )


# The model that experts start from


def definition_of(folder: Path | None) -> bytes:
    """A model's tokenizer; None is SmolLM2's."""
    if folder is None:
        return find_encoder("smollm2").definition
    return plain_definition((folder / "tokenizer.json").read_bytes())


def digest_of(folder: Path | None) -> str:
    """What tells models apart; None is SmolLM2, whose file is not read for it."""
    return SMOLLM2_SHA256 if folder is None else model_files(str(folder)).digest()


def load(folder: Path | None, device: str) -> Any:
    """A causal language model in float32 on a device, from a folder of Hugging Face's; None is
    SmolLM2.
    """
    transformers = imported("transformers", "contextual")
    options = {
        "use_safetensors": True,
        "trust_remote_code": False,
        "local_files_only": True,
    }
    try:
        with quiet(transformers):
            if folder is None:
                model = from_gguf(smollm2_file())
            else:
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    str(folder), **options
                )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EncoderError(
            f"no language model can be loaded from {folder or NAME}:"
            f" {first_line(error)}"
        ) from error
    model.config.use_cache = False
    return model.float().to(device)


def from_gguf(path: Path) -> Any:
    """The model of a GGUF file of Llama's kind, its tensors bit for bit the float32 values that the
    file means.

    transformers reads such files itself, but only where accelerate is installed.
    """
    gguf = imported("gguf", "client")
    torch = imported("torch", "contextual")
    transformers = imported("transformers", "contextual")
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = {key: reader.fields[field].contents() for key, field in CONFIG.items()}
    heads = {
        "q_proj": int(config["num_attention_heads"]),
        "k_proj": int(config["num_key_value_heads"]),
    }
    known = transformers.LlamaConfig(
        **config, tie_word_embeddings="output.weight" not in tensors
    )
    with torch.device("meta"):
        wanted = transformers.LlamaForCausalLM(known).state_dict()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, known.num_hidden_layers)
    pairs = {name: names.get_name(name, (".weight",)) for name in wanted}
    if known.tie_word_embeddings:
        pairs.pop("lm_head.weight", None)
    missing = (name for name, own in pairs.items() if own not in tensors)
    if wrong := sorted([*missing, *(tensors.keys() - pairs.values())]):
        raise EncoderError(
            f"{path} does not hold a whole model of Llama's kind: {wrong[0]}"
        )
    state = {}
    for name, own in pairs.items():
        values = gguf.dequantize(tensors[own].data, tensors[own].tensor_type)
        part = name.split(".")[-2]
        # GGUF turns neighbouring rows of a head together, Hugging Face the rows of its two halves
        if part in heads:
            values = (
                values.reshape(heads[part], -1, 2, values.shape[1])
                .swapaxes(1, 2)
                .reshape(values.shape)
            )
        state[name] = torch.from_numpy(np.array(values, dtype=np.float32))
    return transformers.LlamaForCausalLM.from_pretrained(
        None, config=known, state_dict=state
    )


def take_off(model: Any, layers: int) -> Any:
    """Leave a model with its last layers alone, and give the rest: ids in, the states those layers
    read out.
    """
    import torch

    body = model.get_decoder()
    stem = copy.copy(body)
    stem._modules = dict(body._modules)
    stem.layers = torch.nn.ModuleList(body.layers[:-layers])
    stem.norm = torch.nn.Identity()
    body.layers = torch.nn.ModuleList(body.layers[-layers:])
    return stem


# Training and scoring


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model reads and what it should say.

    places: which documents the rows are. inputs: ids, or the states that a stem made of them.
    """

    places: tuple[int, ...]
    inputs: torch.Tensor
    labels: torch.Tensor


class Trainer:
    """A model with all it takes to train it again and again from the same beginning.

    Law: after `begin()` it is as it was when it was made.
    """

    def __init__(self, model: Any, recipe: ExpertRecipe, device: str) -> None:
        self._recipe = recipe
        self._device = device
        self._stem = take_off(model, recipe.layers) if recipe.layers else None
        self._model = model.train()  # there is no dropout in it
        if self._stem is not None:
            model.get_input_embeddings().weight.requires_grad_(False)
            model.get_output_embeddings().weight.requires_grad_(False)
        self._start = self.weights()

    def weights(self) -> Weights:
        """A copy of what is trained."""
        return [each.detach().clone() for each in self._trained()]

    def begin(self, weights: Weights | None = None) -> None:
        """Take on these weights, or those of the beginning."""
        for each, value in zip(self._trained(), weights or self._start, strict=True):
            each.data.copy_(value)

    def _trained(self) -> Weights:
        return [each for each in self._model.parameters() if each.requires_grad]

    # Reading

    def training_batches(self, sequences: NDArray[np.int64]) -> list[Batch]:
        """Training sequences in steps."""
        size = self._recipe.batch
        steps = [
            sequences[start : start + size] for start in range(0, len(sequences), size)
        ]
        return [self._rows((), step[:, :-1], step[:, 1:]) for step in steps]

    def test_batches(self, documents: Sequence[Ids], end: int) -> list[Batch]:
        """Documents to be scored, each cut and behind an `end`, so that its first token is
        predicted too.
        """
        cut = [ids[: self._recipe.longest] for ids in documents]
        most = MAX_PASS_TOKENS[self._device.partition(":")[0]]
        return [
            self._padded(places, cut, end)
            for places in passes([len(ids) for ids in cut], most)
        ]

    def _padded(
        self, places: Sequence[int], documents: Sequence[Ids], end: int
    ) -> Batch:
        """Padding stands behind, where a causal model does not see it."""
        rows = [documents[place].astype(np.int64) for place in places]
        width = max(map(len, rows))
        inputs = np.stack(
            [
                np.pad(ids[:-1], (1, width - len(ids)), constant_values=end)
                for ids in rows
            ]
        )
        labels = np.stack(
            [
                np.pad(ids, (0, width - len(ids)), constant_values=IGNORED_LABEL)
                for ids in rows
            ]
        )
        return self._rows(tuple(places), inputs, labels)

    def _rows(
        self,
        places: tuple[int, ...],
        inputs: NDArray[np.int64],
        labels: NDArray[np.int64],
    ) -> Batch:
        import torch

        ids = torch.from_numpy(np.ascontiguousarray(inputs)).to(self._device)
        if self._stem is not None:
            with torch.no_grad():
                ids = self._stem(input_ids=ids).last_hidden_state
        return Batch(
            places, ids, torch.from_numpy(np.ascontiguousarray(labels)).to(self._device)
        )

    # Learning

    def learn(
        self, batches: Sequence[Batch], rate: float, tick: Callable[[], None]
    ) -> list[float]:
        """Train on every step once: AdamW, the rate warmed up and then a cosine down to nothing.
        The losses.
        """
        import torch

        gpu = self._device != "cpu"
        options: dict[str, Any] = {
            "betas": (0.9, 0.95),
            "weight_decay": self._recipe.decay,
            "fused": gpu,
        }
        optimiser = torch.optim.AdamW(self._trained(), rate, **options)
        losses = []
        for number, rows in enumerate(batches):
            for group in optimiser.param_groups:
                group["lr"] = rate * rate_share(
                    number, len(batches), self._recipe.warmup
                )
            with (
                torch.autocast("cuda", torch.bfloat16)
                if gpu
                else contextlib.nullcontext()
            ):
                loss = self._losses(rows).sum() / (rows.labels != IGNORED_LABEL).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._trained(), self._recipe.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            tick()
        return [float(loss) for loss in losses]

    def likelihoods(self, batches: Sequence[Batch], count: int) -> NDArray[np.float64]:
        """The negative log-likelihood of each of `count` documents: 0 for one without tokens."""
        import torch

        found = np.zeros(count)
        with torch.inference_mode(), _tensor_float():
            for rows in batches:
                found[list(rows.places)] = (
                    self._losses(rows).double().sum(1).cpu().numpy()
                )
        return found

    def _losses(self, rows: Batch) -> torch.Tensor:
        """rows × length: the cost of each token, 0 for padding."""
        import torch

        name = "inputs_embeds" if rows.inputs.is_floating_point() else "input_ids"
        scores = self._model(**{name: rows.inputs}).logits.float().flatten(0, 1)
        labels = rows.labels.flatten()
        losses = torch.nn.functional.cross_entropy(
            scores, labels, ignore_index=IGNORED_LABEL, reduction="none"
        )
        return losses.view_as(rows.labels)


@contextlib.contextmanager
def _tensor_float() -> Any:
    """On a GPU, products in TensorFloat-32: ten bits of each number, sums in float32."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rate_share(step: int, steps: int, warmup: float) -> float:
    """The share of the learning rate at a step: up in a line, down in half a cosine."""
    risen = max(1, round(steps * warmup))
    if step < risen:
        return (step + 1) / risen
    return 0.5 * (1.0 + math.cos(math.pi * (step - risen) / max(1, steps - risen)))


def passes(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Documents that are read together: of like length, at most `most` tokens with padding; empty
    ones not at all.
    """
    order = sorted(
        (place for place, length in enumerate(lengths) if length),
        key=lambda place: lengths[place],
    )
    found: list[list[int]] = []
    for place in order:
        if found and lengths[place] * (len(found[-1]) + 1) <= most:
            found[-1].append(place)
        else:
            found.append([place])
    return found
