"""Experts: a small language model fine-tuned one a domain, and how likely each finds test texts.

The model is SmolLM2 out of its GGUF file, or one out of a folder. Imports gguf, torch and
transformers when it is loaded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from ridgeway.common.base.errors import EncoderError, first_line
from ridgeway.common.cli.terminal import step
from ridgeway.common.statistics import Integers
from ridgeway.common.text.encoder_files import find_encoder, smollm2_file
from ridgeway.common.text.model_files import imported, quiet
from ridgeway.common.text.tokenizer import (
    Ids,
    Tokenizer,
    plain_definition,
    shared_tokenizer,
)
from ridgeway.simulations.experiments.dataset import Dataset, Texts, split
from ridgeway.simulations.experiments.sentence_routers import batches, descent

_NAME = "SmolLM2-135M-Instruct"
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
BASE = "base model, not fine-tuned"
MERGED = "experts average (mean of their weights)"
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<end>")
"""What language models are taught to end a document with: the first that a tokenizer has is taken.
"""
_SCORED_AT_ONCE = 16
_PADDING = -100
"""A label that costs nothing."""


@dataclass(frozen=True, slots=True)
class ExpertRecipe:
    """
    tokens:    that an expert is trained on: as many rounds through its text as that takes.
    length:    of a training sequence, in tokens. batch: sequences a step.
    layers:    the last layers that are trained; 0 trains every parameter.
    documents: test texts of a domain at most; None takes all. longest: tokens after which a test
               text is cut.
    """

    tokens: int
    length: int
    batch: int
    layers: int
    rate: float
    documents: int | None
    longest: int

    def words(self) -> str:
        parts = f"the last {self.layers} layers" if self.layers else "all parameters"
        return (
            f"{parts} trained on {self.tokens:,} tokens a domain in sequences of"
            f" {self.length}, {self.batch} a step, at a learning rate of {self.rate:g};"
            f" test texts cut at {self.longest} tokens"
        )


FULL_RECIPE = ExpertRecipe(1_000_000, 512, 16, 0, 3e-4, None, 512)
SHORT_RECIPE = ExpertRecipe(512, 128, 1, 4, 5e-4, 6, 48)


# Likelihoods


@dataclass(frozen=True, slots=True, eq=False)
class Likelihoods:
    """
    models: BASE, an expert for each domain under its name, MERGED.
    costs:  by domain, documents × models: the negative log-likelihood of each document.
    tokens: by domain, how many tokens of each document were predicted.
    """

    domains: tuple[str, ...]
    models: tuple[str, ...]
    costs: Mapping[str, NDArray[np.float64]]
    tokens: Mapping[str, Integers]

    def perplexity(self, domain: str, model: str) -> float:
        """Of one model over all documents of a domain."""
        return self._perplexity(domain, self.costs[domain][:, self.models.index(model)])

    def routed_perplexity(self, domain: str, places: Sequence[int]) -> float:
        """When each document is answered by the expert of the domain it is sent to."""
        costs = self.of_experts(domain)
        return self._perplexity(domain, costs[np.arange(len(costs)), places])

    def random_perplexity(self, domain: str) -> float:
        """When experts are drawn by lot: the mean of what all draws would cost."""
        return self._perplexity(domain, self.of_experts(domain).mean(axis=1))

    def least(self, domain: str) -> list[int]:
        """For each document, the place of the expert that finds it likeliest."""
        found: list[int] = self.of_experts(domain).argmin(axis=1).tolist()
        return found

    def normalised(self, domain: str, perplexity: float) -> float:
        """100 is what the domain's own expert reaches; more is better."""
        return 100.0 * self.perplexity(domain, domain) / perplexity

    def of_experts(self, domain: str) -> NDArray[np.float64]:
        """Documents × experts."""
        places = [self.models.index(name) for name in self.domains]
        return self.costs[domain][:, places]

    def _perplexity(self, domain: str, costs: NDArray[np.float64]) -> float:
        return math.exp(float(costs.sum()) / max(1, int(self.tokens[domain].sum())))


# The model that experts start from


def definition_of(folder: Path | None) -> bytes:
    """A model's tokenizer; None is SmolLM2's."""
    if folder is None:
        return find_encoder("smollm2").definition
    return plain_definition((folder / "tokenizer.json").read_bytes())


def load(folder: Path | None, device: str) -> Any:
    """A causal language model in float32 on a device; None is SmolLM2."""
    transformers = imported("transformers", "transformers")
    try:
        with quiet(transformers):
            if folder is None:
                model = from_gguf(smollm2_file())
            else:
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    str(folder), use_safetensors=True, local_files_only=True
                )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EncoderError(
            f"no language model can be loaded from {folder or _NAME}:"
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
    torch = imported("torch", "transformers")
    transformers = imported("transformers", "transformers")
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


# Training and scoring


def end_of(definition: bytes) -> int:
    """The id that stands between documents, and before the first token of each."""

    backend = Backend.from_str(definition.decode())
    for word in ENDS:
        token_id = backend.token_to_id(word)
        if token_id is not None:
            return int(token_id)
    raise EncoderError(
        f"the tokenizer has none of {', '.join(ENDS)}, and an expert needs to know where"
        " texts end"
    )


def training_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    end: int,
    recipe: ExpertRecipe,
    seed: int,
) -> Integers:
    """Rows of `length` + 1 ids: documents behind one another, an end before each, in another order
    every round.

    A row begins with the last id of the row before, so that each id is predicted once.
    """
    rows = max(1, recipe.tokens // recipe.length)
    needed = rows * recipe.length + 1
    chance = random.Random(seed)
    stream = [end]
    if not any(texts):
        raise EncoderError("a domain has no text to train an expert on")
    while len(stream) < needed:
        for text in chance.sample(texts, len(texts)):
            stream += [*tokenizer.encode(text).tolist(), end]
            if len(stream) >= needed:
                break
    starts = range(0, needed - 1, recipe.length)
    return np.array([stream[start : start + recipe.length + 1] for start in starts])


def train(model: Any, rows: Integers, recipe: ExpertRecipe) -> None:
    """On every row once."""
    import torch

    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = torch.from_numpy(rows).to(model.device).split(recipe.batch)
    step = descent(weights, recipe.rate, len(batches), betas=(0.9, 0.95))
    device = model.device.type
    for batch in batches:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=batch, labels=batch).loss
        step(loss)


def document_costs(model: Any, documents: Sequence[Ids], end: int) -> list[float]:
    """The negative log-likelihood of each document behind an end; 0 of one without tokens.

    Documents of like length are read together; padding stands behind them, where nothing that
    counts looks.
    """
    import torch

    lengths = np.array([len(ids) for ids in documents])
    order = np.argsort(lengths, kind="stable")[np.count_nonzero(lengths == 0) :]
    found = np.zeros(len(documents))
    with torch.inference_mode():
        for part in batches(order, _SCORED_AT_ONCE):
            rows = [torch.tensor([end, *documents[index].tolist()]) for index in part]
            padded = torch.nn.utils.rnn.pad_sequence(rows, True, _PADDING)
            labels = padded[:, 1:].to(model.device)
            inputs = padded[:, :-1].clamp(min=0).to(model.device)
            logits = model(input_ids=inputs).logits
            costs = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), labels, reduction="none", ignore_index=_PADDING
            )
            found[part] = costs.double().sum(1).cpu().numpy()
    return found.tolist()


def train_experts(
    dataset: Dataset,
    scored: Sequence[Texts],
    folder: Path | None,
    recipe: ExpertRecipe,
    device: str,
    seed: int,
) -> list[Likelihoods]:
    """An expert a domain, each trained from the same beginning on the part of the training text
    that is not held out, and how likely they find each set of scored texts. What comes out depends
    on texts, recipe and seed; in last digits, on the device.
    """
    import torch
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    definition = definition_of(folder)
    tokenizer = shared_tokenizer(definition)
    end = end_of(definition)
    fit = split(dataset).fit
    documents = [
        {
            name: [tokenizer.encode(text)[: recipe.longest] for text in own]
            for name, own in texts.items()
        }
        for texts in scored
    ]
    model = load(folder, device)
    if recipe.layers:
        model.requires_grad_(False)
        model.get_decoder().layers[-recipe.layers :].requires_grad_(True)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = parameters_to_vector(weights).detach()
    total = torch.zeros_like(start)

    def costs() -> list[dict[str, list[float]]]:
        return [
            {name: document_costs(model, own, end) for name, own in texts.items()}
            for texts in documents
        ]

    scores = {BASE: costs()}
    for name in dataset.domains:
        vector_to_parameters(start.clone(), weights)
        rows = training_rows(tokenizer, fit[name], end, recipe, seed)
        train(model, rows, recipe)
        scores[name] = costs()
        total += parameters_to_vector(weights).detach()
        step("trained", f"{name} expert", dataset.name)
    vector_to_parameters(total / len(dataset.domains), weights)
    scores[MERGED] = costs()
    return [
        Likelihoods(
            dataset.domains,
            tuple(scores),
            {
                name: np.array([found[index][name] for found in scores.values()]).T
                for name in texts
            },
            {name: np.array([*map(len, own)]) for name, own in texts.items()},
        )
        for index, texts in enumerate(documents)
    ]
