"""The model that every expert starts from: found, packed once, and loaded; and how its last layers are taken off.

Imports torch and transformers when a model is loaded. Knows nothing of texts.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from common.encoder_sources import SMOLLM2_SHA256, find_encoder, smollm2_file
from common.errors import EncoderError, first_line
from common.files import cache_folder
from common.hub import imported
from common.model_files import model_files
from common.tokenizer import plain_definition
from common.transformer import quiet
from simulations.lab.experts.packed import CONTENTS, contents, pack, unpack

EXTRA = "contextual"
NAME = "SmolLM2-135M-Instruct"
DIGEST = SMOLLM2_SHA256


def packed_smollm2(folder: Path | None = None) -> Path:
    """The compact folder of SmolLM2: in the user's cache unless another place is named; written where it is missing."""
    folder = folder or cache_folder() / "models" / f"smollm2-{DIGEST[:12]}"
    if not (folder / CONTENTS).exists():
        pack(smollm2_file(), find_encoder("smollm2").definition, folder)
    return folder


def definition_of(folder: Path | None) -> bytes:
    """A model's tokenizer; None is SmolLM2's."""
    if folder is None:
        return find_encoder("smollm2").definition
    return plain_definition((folder / "tokenizer.json").read_bytes())


def digest_of(folder: Path) -> str:
    """What tells models apart: for a compact folder, the hash of the file that was packed."""
    if (folder / CONTENTS).exists():
        return str(contents(folder)["source"])
    return model_files(str(folder)).digest()


def load(folder: Path, device: str) -> Any:
    """A causal language model in float32 on a device, from a compact folder or one of Hugging Face's."""
    transformers = imported("transformers", EXTRA)
    try:
        with quiet(transformers):
            model = _packed(folder) if (folder / CONTENTS).exists() else _plain(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EncoderError(f"no language model can be loaded from {folder}: {first_line(error)}") from error
    model.config.use_cache = False
    return model.float().to(device)


def _packed(folder: Path) -> Any:
    torch, transformers = imported("torch", EXTRA), imported("transformers", EXTRA)
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    state = {name: torch.from_numpy(array) for name, array in unpack(folder).items()}
    kind = transformers.LlamaForCausalLM  # the one kind that is ever packed
    model, told = kind.from_pretrained(None, config=config, state_dict=state, output_loading_info=True)
    wrong = sorted([*told["missing_keys"], *told["unexpected_keys"]])
    if wrong:
        raise EncoderError(f"{folder} does not hold the model of its config.json: {wrong[0]}; pack it again")
    return model


def _plain(folder: Path) -> Any:
    options = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    return imported("transformers", EXTRA).AutoModelForCausalLM.from_pretrained(str(folder), **options)


def take_off(model: Any, layers: int) -> Any:
    """Leave a model with its last layers alone, and give the rest: ids in, the states those layers read out."""
    import torch

    body = model.get_decoder()
    stem = copy.copy(body)
    stem._modules = dict(body._modules)
    stem.layers, stem.norm = torch.nn.ModuleList(body.layers[:-layers]), torch.nn.Identity()
    body.layers = torch.nn.ModuleList(body.layers[-layers:])
    return stem
