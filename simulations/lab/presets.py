"""The paper's data sets as settings, by their names on the Hugging Face hub.

    Preset ──▶ Source(s) of a domain ──▶ a shuffled stream ──▶ the first texts of each side ──▶ Setting

No text is on both sides. Data sets on a hub change: names, files and fields were looked up when this was written, and
may be others today. Sets whose loading scripts `datasets` no longer runs are read from their files.
Knows nothing of routers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

from client.corpus import is_held_out
from common.errors import CorpusError, InputError, RidgewayError, first_line
from common.tokenizer import storable
from simulations.lab.setting import Setting
from simulations.lab.streams import OWN_TEXTS, Row, Source, must_reach_hub, stream

LONGEST = 8_000
"""A text is cut after so many characters, about twice what the paper reads of one."""
TEST_SHARE = 0.2
"""Of texts that one split gives for both sides, so many are for the test."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Sources share the texts evenly. test: none where the sources of `train` are divided."""

    train: tuple[Source, ...]
    test: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Preset:
    """words: what it is, for people."""

    words: str
    domains: Mapping[str, Domain]


def _m2d2(config: str) -> Domain:
    return Domain((Source("machelreid/m2d2", files=f"data/{config}.tar.gz", by="block"),))


def _pile_of_law(*names: str) -> Domain:
    return Domain(tuple(Source("pile-of-law/pile-of-law", files=f"data/train.{name}.jsonl.xz") for name in names))


LANGUAGES = "ar bn ca de es eu fr gu hi hr hu hy id it kn ml mr ne nl pt ro ru sk sr sv ta te uk vi zh".split()
"""Those of the paper."""
ULTRACHAT = "HuggingFaceH4/ultrachat_200k"
PES2O = "allenai/peS2o"
LAW = ("r_legaldvice", "courtlisteneropinions.0", "atticus_contracts.0", "cfr", "eurlex")

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "clm": Preset(
            "M2D2: arXiv and Wikipedia",
            {
                "coding": _m2d2("cs_l1"),
                "math": _m2d2("math_l1"),
                "physics": _m2d2("physics_l1"),
                "history": _m2d2("History_and_events"),
                "philosophy": _m2d2("Philosophy_and_thinking"),
            },
        ),
        "clm-large": Preset(
            "OpenWebMath, peS2o, Pile of Law and UltraChat",
            {
                "math": Domain((Source("open-web-math/open-web-math"),)),
                "biology": Domain(
                    (Source(PES2O, files="data/v2/train-*.json.gz"),),
                    (Source(PES2O, files="data/v2/validation-*.json.gz"),),
                ),
                "legal": _pile_of_law(
                    "r_legaldvice", "courtlisteneropinions.0", "atticus_contracts.0", "cfr", "eurlex"
                ),
                "dialogue": Domain(
                    (Source(ULTRACHAT, split="train_sft", field="messages"),),
                    (Source(ULTRACHAT, split="test_sft", field="messages"),),
                ),
            },
        ),
        "reasoning": Preset(
            "prompts that MergeBench's experts learnt from; GSM8K, HumanEval, M_ARC and IFEval as tests",
            {
                "math": Domain(
                    (Source("hkust-nlp/dart-math-hard", field="query"),),
                    (Source("openai/gsm8k", "main", "test", "question"),),
                ),
                "coding": Domain(
                    (Source("ise-uiuc/Magicoder-OSS-Instruct-75K", field="problem"),),
                    (Source("openai/openai_humaneval", split="test", field="prompt"),),
                ),
                "multilingual": Domain(
                    (Source("CohereLabs/aya_dataset", "default", field="inputs"),),
                    tuple(Source("alexandrainst/m_arc", code, "test", "instruction") for code in LANGUAGES),
                ),
                "instruction": Domain(
                    (Source("allenai/tulu-3-sft-personas-instruction-following", field="prompt"),),
                    (Source("google/IFEval", field="prompt"),),
                ),
            },
        ),
    }
)

Load = Callable[[Source, int], Iterable[Row]]
"""The records of a source in an order that a seed decides."""


def preset_setting(
    name: str, *, most_train: int = 2_000, most_test: int = 400, seed: int = 1, load: Load | None = None
) -> Setting:
    """The setting of a preset with at most so many texts of a domain.

    Raises InputError if there is no such preset, CorpusError if the hub cannot be reached or a data set has changed.
    Law: the same seed gives the same texts as long as the data sets stay as they are; no text is on both sides.
    """
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    if load is None:
        must_reach_hub(name)
    chosen = PRESETS[name]
    sides = {domain: _sides(own, most_train, most_test, seed, load or stream) for domain, own in chosen.domains.items()}
    test = {domain: test for domain, (_, test) in sides.items()}
    train = _apart({domain: train for domain, (train, _) in sides.items()}, test)
    for domain in chosen.domains:
        if not train[domain] or not test[domain]:
            raise CorpusError(f"{domain!r} of the preset {name!r} has no text left; its data set has probably changed")
    return Setting(name, f"{chosen.words}, from the Hugging Face hub", train, test)


Texts = tuple[str, ...]


def _sides(domain: Domain, most_train: int, most_test: int, seed: int, load: Load) -> tuple[Texts, Texts]:
    if domain.test:
        return _evenly(domain.train, most_train, seed, load), _evenly(domain.test, most_test, seed, load)
    shares = zip(domain.train, _shares(most_train, domain.train), _shares(most_test, domain.train), strict=True)
    pairs = [_divided(source, few, fewer, seed, load) for source, few, fewer in shares]
    return tuple(chain.from_iterable(train for train, _ in pairs)), tuple(
        chain.from_iterable(test for _, test in pairs)
    )


def _apart(train: Mapping[str, Texts], test: Mapping[str, Texts]) -> dict[str, Texts]:
    """Training texts that are no test text of any domain."""
    seen = {text for own in test.values() for text in own}
    return {domain: tuple(text for text in own if text not in seen) for domain, own in train.items()}


def _evenly(sources: tuple[Source, ...], most: int, seed: int, load: Load) -> Texts:
    parts = (islice(_texts(each, seed, load), few) for each, few in zip(sources, _shares(most, sources), strict=True))
    return tuple(text for part in parts for _, text in part)


def _shares(most: int, sources: tuple[Source, ...]) -> list[int]:
    """Equal parts of a number; the first get what is left over."""
    return [len(range(place, most, len(sources))) for place in range(len(sources))]


def _divided(source: Source, most_train: int, most_test: int, seed: int, load: Load) -> tuple[Texts, Texts]:
    """Train and test out of one stream, told apart by a hash that no seed changes."""
    train: list[str] = []
    test: list[str] = []
    for key, text in _texts(source, seed, load):
        side, most = (test, most_test) if is_held_out(key, TEST_SHARE) else (train, most_train)
        if len(side) < most:
            side.append(text)
        elif len(train) >= most_train and len(test) >= most_test:
            break
    return tuple(train), tuple(test)


def _texts(source: Source, seed: int, load: Load) -> Iterator[tuple[str, str]]:
    """Texts that were not there before, each with what it is divided by."""
    seen: set[str] = set()
    try:
        for row in load(source, seed):
            text = storable(_text(row[source.field])).strip()[:LONGEST].strip()
            if text and text not in seen:
                seen.add(text)
                yield (f"{source.files} {row[source.by]}" if source.by else text), text
    except KeyError as error:
        raise CorpusError(f"{source.repo} has no field {error} any more; {OWN_TEXTS}") from None
    except RidgewayError:
        raise
    except Exception as error:  # the hub, its library and the network each have errors of their own
        raise CorpusError(f"{source.repo} cannot be read from the hub ({first_line(error)}); {OWN_TEXTS}") from error


def _text(value: Any) -> str:
    """A text, or the messages of a dialogue without who says them, which would give the domain away."""
    return value if isinstance(value, str) else "\n".join(str(message["content"]) for message in value or ())
