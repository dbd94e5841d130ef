"""The paper's data sets as datasets, by their names on the Hugging Face hub.

    HubSource(s) of a domain ──▶ a shuffled stream ──▶ the first texts of each side
    ──▶ Dataset

Records are streamed, so that no corpus is fetched as a whole. No text is on both sides. Data sets
on a hub change: names, files and fields were looked up when this was written, and may be others
today. Sets whose loading scripts `datasets` no longer runs are read from their files. Imports that
library when it reads.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import (
    CorpusError,
    InputError,
    RidgewayError,
    first_line,
)
from ridgeway.common.base.jsonl import storable
from ridgeway.simulations.experiments.dataset import Dataset

MAX_CHARACTERS = 8_000
"""A text is cut there, at about twice what the paper reads of one."""
TEST_SHARE = 0.2
"""The test share of texts that one split gives for both sides."""
BUFFER_RECORDS = 2_000
"""Records that are held to shuffle a stream."""
_MIN_PIECE_CHARACTERS = 1_500
BLOCK_PIECES = 50
"""Lines become pieces of at least this many characters, and this many neighbouring pieces are a
block.
"""
CONNECT_TIMEOUT_S = 5.0
_RETRIES = 3
_HUB = "hf://datasets"
OWN_TEXTS = "give texts of your own with --data DIR"

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HubSource:
    """Some records of a data set.

    field:   where the text is.
    archive: text files in the repository, instead of what its configuration says. Their pieces have
             a field `block`.
    """

    repo: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    archive: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """Sources share the texts evenly. test: none where the blocks of an archive are divided."""

    train: tuple[HubSource, ...]
    test: tuple[HubSource, ...] = ()


def _m2d2(config: str) -> Domain:
    return Domain((HubSource("machelreid/m2d2", archive=f"data/{config}.tar.gz"),))


LANGUAGES = (
    "ar bn ca de es eu fr gu hi hr hu hy id it kn ml mr ne nl pt ro ru sk sr sv ta te"
    " uk vi zh".split()
)
"""Those of the paper."""

_PRESETS: Mapping[str, Mapping[str, Domain]] = {
    "clm": {
        "coding": _m2d2("cs_l1"),
        "math": _m2d2("math_l1"),
        "physics": _m2d2("physics_l1"),
        "history": _m2d2("History_and_events"),
        "philosophy": _m2d2("Philosophy_and_thinking"),
    },
    "reasoning": {
        "math": Domain(
            (HubSource("hkust-nlp/dart-math-hard", field="query"),),
            (HubSource("openai/gsm8k", "main", "test", "question"),),
        ),
        "coding": Domain(
            (HubSource("ise-uiuc/Magicoder-OSS-Instruct-75K", field="problem"),),
            (HubSource("openai/openai_humaneval", split="test", field="prompt"),),
        ),
        "multilingual": Domain(
            (HubSource("CohereLabs/aya_dataset", "default", field="inputs"),),
            tuple(
                HubSource("alexandrainst/m_arc", code, "test", "instruction")
                for code in LANGUAGES
            ),
        ),
        "instruction": Domain(
            (
                HubSource(
                    "allenai/tulu-3-sft-personas-instruction-following",
                    field="prompt",
                ),
            ),
            (HubSource("google/IFEval", field="prompt"),),
        ),
    },
}
"""`clm` is M2D2: arXiv and Wikipedia. `reasoning` has prompts that MergeBench's experts learnt
from, and GSM8K, HumanEval, M_ARC and IFEval as tests.
"""

Load = Callable[[HubSource, int], Iterable[Record]]
"""The records of a source in an order that a seed decides."""


def preset_dataset(
    name: str,
    *,
    most_train: int = 2_000,
    most_test: int = 400,
    seed: int = 1,
    load: Load | None = None,
) -> Dataset:
    """The dataset of a preset with a limited number of texts of a domain.

    Raises InputError if there is no such preset, CorpusError if the hub cannot be reached or a data
    set has changed. Law: the same seed gives the same texts as long as the data sets stay as they
    are; no text is on both sides.
    """
    if name not in _PRESETS:
        raise InputError(
            f"there is no preset {name!r}; there are {', '.join(_PRESETS)}"
        )
    if load is None:
        must_reach_hub(name)
    domains = _PRESETS[name]
    most = (most_train, most_test)
    sides = {
        domain: _sides(own, most, seed, load or stream)
        for domain, own in domains.items()
    }
    test = {domain: tuple(test) for domain, (_, test) in sides.items()}
    seen = {text for own in test.values() for text in own}
    train = {
        domain: tuple(text for text in train if text not in seen)
        for domain, (train, _) in sides.items()
    }
    for domain in domains:
        if not train[domain] or not test[domain]:
            raise CorpusError(
                f"{domain!r} of the preset {name!r} has no text left; its data set has"
                " probably changed"
            )
    return Dataset(name, "data sets of the Hugging Face hub", train, test)


def _sides(
    domain: Domain, most: Sequence[int], seed: int, load: Load
) -> list[list[str]]:
    """Train and test, of either at most so many: each out of its own sources, or both out of one
    stream, told apart by a hash that no seed changes. Sources have equal parts; the first get what
    is left over.
    """
    sides: list[list[str]] = [[], []]
    for sources, wanted in (
        (domain.train, (0,) if domain.test else (0, 1)),
        (domain.test, (1,)),
    ):
        for place, source in enumerate(sources):
            ends = {
                side: len(sides[side]) + len(range(place, most[side], len(sources)))
                for side in wanted
            }
            for key, text in _texts(source, seed, load):
                side = (
                    int(is_held_out(key, TEST_SHARE)) if len(wanted) > 1 else wanted[0]
                )
                if len(sides[side]) < ends[side]:
                    sides[side].append(text)
                if all(len(sides[each]) == end for each, end in ends.items()):
                    break
    return sides


def _texts(source: HubSource, seed: int, load: Load) -> Iterator[tuple[str, str]]:
    """Texts that were not there before, each with the block by which sides are divided."""
    seen: set[str] = set()
    try:
        for row in load(source, seed):
            text = storable(row[source.field] or "").strip()[:MAX_CHARACTERS].strip()
            if text and text not in seen:
                seen.add(text)
                yield f"{source.archive} {row.get('block')}", text
    except KeyError as error:
        raise CorpusError(
            f"{source.repo} has no field {error} any more; {OWN_TEXTS}"
        ) from None
    except RidgewayError:
        raise
    except (
        Exception
    ) as error:  # the hub, its library and the network each have errors of their own
        raise CorpusError(
            f"{source.repo} cannot be read from the hub ({first_line(error)});"
            f" {OWN_TEXTS}"
        ) from error


# The hub


def must_reach_hub(name: str) -> None:
    """Raise CorpusError at once, not after minutes of trying again, where there is no network."""
    hub = _imported("huggingface_hub")
    _imported("datasets")
    if hub.constants.HF_HUB_OFFLINE:
        raise _out_of_reach(name, "and HF_HUB_OFFLINE is set")
    try:
        _imported("huggingface_hub.utils").get_session().head(
            hub.constants.ENDPOINT, timeout=CONNECT_TIMEOUT_S
        )
    except Exception as error:  # of whichever library the hub's own uses
        raise _out_of_reach(
            name, f"which does not answer ({first_line(error)})"
        ) from error


def _out_of_reach(name: str, reason: str) -> CorpusError:
    where = f"the preset {name!r} is on the Hugging Face hub, {reason}"
    return CorpusError(f"{where}; run this where there is a network, or {OWN_TEXTS}")


def stream(source: HubSource, seed: int, root: str = _HUB) -> Iterator[Record]:
    """The records of a source, shuffled in a buffer. root: a folder that stands in for the hub."""
    datasets = _imported("datasets")
    datasets.disable_progress_bars()
    datasets.config.STREAMING_READ_MAX_RETRIES = (
        datasets.config.STREAMING_OPEN_MAX_RETRIES
    ) = _RETRIES
    address = f"{root}/{source.repo}"
    if source.archive:
        whole = datasets.IterableDataset.from_generator(
            lambda: _pieces(f"{address}/{source.archive}")
        )
    else:
        repo = source.repo if root == _HUB else address
        whole = datasets.load_dataset(
            repo, source.config, split=source.split, streaming=True
        )
    return iter(whole.shuffle(seed=seed, buffer_size=BUFFER_RECORDS))


def _pieces(address: str) -> Iterator[Record]:
    """The lines of the text files in an archive, in the order that they come in, put together to
    pieces.
    """
    lines: list[str] = []
    number = 0
    for line in _lines(address):
        lines.append(line)
        if sum(map(len, lines)) >= _MIN_PIECE_CHARACTERS:
            yield {"text": "\n".join(lines), "block": number // BLOCK_PIECES}
            number += 1
            lines = []


def _lines(address: str) -> Iterator[str]:
    fsspec = _imported("fsspec")
    with (
        fsspec.open(address, "rb", block_size=0) as raw,
        tarfile.open(fileobj=raw, mode="r|gz") as archive,
    ):
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".txt") else None
            if file is not None:
                yield from filter(
                    None, (line.decode(errors="replace").strip() for line in file)
                )


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"presets need the package {error.name}; install ridgeway[hub]"
        ) from None
