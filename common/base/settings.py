"""Every setting that changes a router, once, with the two presets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from ridgeway.common.base.errors import InputError

Weighting = Literal["equal", "tokens"]
SelectorName = Literal["average", "entropy", "all"]
SentenceUse = Literal["auto", "never", "always"]
"""Which prompts the sentence encoder reads: those that the table is unsure of, none, or all."""

FEATURE_LIMIT = 1 << 12
"""No integer feature is larger than this: the public bound of the quantised table."""

MAX_WORD_FEATURES = 1 << 14
"""How many features words may have beside their tokens'."""

MAX_WINDOW_TOKENS = 1 << 16
MAX_JOINED_WINDOW_TOKENS = 3 * MAX_WINDOW_TOKENS // 2
"""The largest window that may be asked for, and the largest that there is once a rest has joined
it.
"""

MAX_DOCUMENT_TIMES = 1 << 12
"""The most units of a document, and the most that its mistyped copy may count."""

UNIT_SHARES = 5
"""A document's units are divided by this: two parts for its windows, one for each of three longer
samples.
"""

SHORT_DOCUMENT_TOKENS = 20
"""A document of so few tokens is one sample, which has all its units."""

DOMAIN_NAME = re.compile(r"[\w][\w.-]{0,63}")
"""What domains and holders may be called; names become names of files."""

MAX_EXPERTS = 256
MAX_EXPERT_LETTERS = 200
"""How many experts can be compared, and how long their names may be."""

DEFAULT_LISTEN = "127.0.0.1:9443"
"""Where a coordinator listens unless it is told otherwise."""

ENCODERS = (
    "use, smollm2, hf:NAME_OR_DIR or dir:PATH; +words, +sentence and +sentence:DIR add "
    "features"
)
"""How an encoder is named."""

EQUAL_MASS = 1 << 24
"""The public sample mass that every domain is normalised to under `equal` weighting."""

MAX_HELD_OUT_DOCUMENTS = 2000
"""The most documents that a holder evaluates on; larger counts are refused."""

DEFAULT_DELTA = 1e-8
"""The δ of private rounds, unless they name another."""

MAX_ROUND_EPSILON = 1.0
MAX_LIFETIME_EPSILON = 4.0
"""What one private round, and all that ever leaves, may cost a document, unless its holder says
otherwise.
"""


def check_domain_name(name: str, what: str = "domain") -> None:
    if not DOMAIN_NAME.fullmatch(name):
        raise InputError(
            f"invalid {what} name {name!r}; use at most 64 letters, digits, dots, "
            "dashes and underscores"
        )


def check_expert_name(name: str) -> str:
    if (
        not 0 < len(name) <= MAX_EXPERT_LETTERS
        or not name.isprintable()
        or name != name.strip()
    ):
        raise InputError(
            f"invalid expert name {name[:40]!r}; use 1 to {MAX_EXPERT_LETTERS} "
            "characters, without spaces at the ends"
        )
    return name


def _number(default: int, least: int, most: int, meaning: str) -> Any:
    """A parameter of Sampling: its limits, and what people are told that it means."""
    limits = {"least": least, "most": most}
    return field(default=default, metadata={**limits, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a document becomes samples: part of every statistics file, equal in all files of a
    release, and in a round equal to what its holders have agreed to.

    Options, settings files, terms and reports are made of this declaration.
    """

    window: int = _number(
        64, 1, MAX_WINDOW_TOKENS, "tokens per window; 1 is the published method"
    )
    max_tokens: int = _number(
        0, 0, 1 << 40, "only the first N tokens of a document are used; 0: all"
    )
    stride: int = _number(
        0,
        0,
        MAX_WINDOW_TOKENS,
        "tokens between the starts of two windows; 0: no overlap",
    )
    units: int = _number(
        0,
        0,
        MAX_DOCUMENT_TIMES,
        "weight of a document: two fifths for its windows, one fifth each for the "
        "whole, its first `stride` and its first `window` tokens; 0: one per window",
    )
    mistyped: int = _number(
        0,
        0,
        MAX_DOCUMENT_TIMES,
        "weight of a misspelt copy of a document's opening; 0: off",
    )
    opening: int = _number(
        0,
        0,
        MAX_WINDOW_TOKENS,
        "the first N tokens of a document weigh another fifth of `units`; 0: off",
    )

    def __post_init__(self) -> None:
        for name, limits in SAMPLING.items():
            value = getattr(self, name)
            if type(value) is not int or not limits["least"] <= value <= limits["most"]:
                raise InputError(
                    f"{name} is {value!r}; it must be {limits['least']} to "
                    f"{limits['most']}"
                )
        if 0 < self.stride < self.window:
            raise InputError(
                f"a stride of {self.stride} is shorter than the window of "
                f"{self.window}; use {self.window} or more, or 0"
            )
        if self.units % UNIT_SHARES:
            raise InputError(
                f"units is {self.units}; it must be a multiple of {UNIT_SHARES}, or 0"
            )
        if self.opening and not self.units:
            raise InputError("`opening` needs `units`; set both")

    @property
    def is_plain(self) -> bool:
        """Whether every token stands in one window, and that is all."""
        return not (self.units or self.mistyped or self.stride > self.window)

    @classmethod
    def of_json(cls, facts: Mapping[str, Any]) -> Sampling:
        """As files and messages have it, where what is 0 may be left out."""
        numbers = dict(facts)
        documents = numbers.pop("documents", 0)
        if type(documents) is not int or documents:
            raise InputError("`documents` is no longer supported; use `units`")
        unknown = numbers.keys() - SAMPLING.keys()
        if unknown or "window" not in numbers:
            raise InputError(
                f"sampling needs `window`, and may have {', '.join(SAMPLING)}; this "
                f"one has {', '.join(map(str, numbers)) or 'none'}"
            )
        return cls(**numbers)

    def to_json(self) -> dict[str, int]:
        """As it stands in files: what plain windows do not need is left out of them."""
        plain = {"window": self.window, "max_tokens": self.max_tokens}
        used = {name: getattr(self, name) for name in SAMPLING if getattr(self, name)}
        return plain | used

    def __str__(self) -> str:
        used = self.to_json().items()
        return ", ".join(f"{name} {value}" for name, value in used if value)


SAMPLING: Mapping[str, Mapping[str, Any]] = {
    number.name: number.metadata for number in fields(Sampling)
}
"""The parameters of sampling by name: `least`, `most` and `meaning`."""


def changed_sampling(usual: Sampling, **given: int | None) -> Sampling:
    """The usual sampling with what was given in its place; a window alone means plain windows of
    that size.
    """
    changes = {name: value for name, value in given.items() if value is not None}
    if "window" in changes:
        usual = Sampling(max_tokens=usual.max_tokens)
    return replace(usual, **changes)


@dataclass(frozen=True, slots=True)
class WordFeatures:
    """What an encoder adds to its tokens' own features: words by their letters in lower case.

    width:     how many buckets the runs of letters are hashed into.
    amplitude: what a run of letters counts, where a token's features reach FEATURE_LIMIT.
    """

    width: int = 768
    amplitude: int = 2048

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_WORD_FEATURES:
            raise InputError(
                f"{self.width} word features are not supported; use 1 to "
                f"{MAX_WORD_FEATURES}"
            )
        if not 1 <= self.amplitude <= FEATURE_LIMIT:
            raise InputError(
                f"the amplitude of letter runs is {self.amplitude}; it must be 1 to "
                f"{FEATURE_LIMIT}"
            )

    @classmethod
    def of_json(cls, facts: Mapping[str, Any]) -> WordFeatures:
        """As it stands in files."""
        if set(facts) != {number.name for number in fields(cls)}:
            raise InputError("its word features have another version; save it again")
        return cls(**facts)


@dataclass(frozen=True, slots=True)
class Ridge:
    """λ: relative to the mean diagonal of A, or absolute."""

    value: float = 1e-2
    relative: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.value < float("inf"):
            raise InputError(
                f"ridge λ must be positive, not {self.value:g}; the default is 0.01"
            )


@dataclass(frozen=True, slots=True)
class Selector:
    """How the tokens of a prompt decide: `average`, `entropy` (the k most certain tokens vote) or
    `all` (all vote).
    """

    name: SelectorName = "average"
    k: int = 10

    def __post_init__(self) -> None:
        if self.name not in ("average", "entropy", "all"):
            raise InputError(
                f"there is no selector {self.name!r}; there are average, entropy and all"
            )
        if self.k < 1:
            raise InputError(f"k must be at least 1, not {self.k}")


@dataclass(frozen=True, slots=True)
class Scope:
    """The chance that a text belongs to any domain: the logistic of slope · prominence + growth ·
    ln tokens + offset.

    least: below this chance the router abstains.
    """

    slope: float
    growth: float
    offset: float
    least: float

    def __post_init__(self) -> None:
        if (
            not all(map(math.isfinite, (self.slope, self.growth, self.offset)))
            or not self.slope > 0
        ):
            raise InputError(
                "a scope needs a positive slope, and numbers for growth and offset"
            )
        if not 0 <= self.least <= 1:
            raise InputError(
                "the scope threshold is a probability between 0 and 1, not "
                f"{self.least:g}"
            )


@dataclass(frozen=True, slots=True)
class Confidence:
    """How scores become probabilities, and when they are too low to act on.

    temperature: scores are divided by it before the softmax; `calibrated` says whether it was
                 fitted on held-out text.
    growth:      how certainty grows with length: n tokens divide the temperature by n to this
                 power.
    half:        a score over n tokens counts n / (n + half) of itself: half at so many tokens,
                 nearly all far above.
    tail:        how slowly the odds of a domain fall with its distance d from the one ahead, (1 +
                 tail · d) to the power −1/tail; 0 is e to the −d, the softmax. Among many domains
                 somewhat more than that is true.
    threshold:   below this confidence the router abstains and names `fallback`.
    scope:       what text belongs to any domain, if that was learnt; on all other text the router
                 abstains as well, unless the least chance is 0.
    outside:     domains of text that no expert is for; where one of them is ahead, the router
                 abstains.
    """

    temperature: float = 1.0
    growth: float = 0.0
    calibrated: bool = False
    threshold: float = 0.0
    fallback: str | None = None
    scope: Scope | None = None
    half: float = 0.0
    tail: float = 0.0
    outside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be positive, not {self.temperature!r}")
        if not 0 <= self.growth <= 1:
            raise InputError(f"growth must be between 0 and 1, not {self.growth!r}")
        if not (0 <= self.half < math.inf and 0 <= self.tail <= 1):
            words = "half is a number of tokens, and tail is between 0 and 1"
            raise InputError(f"{words}; got {self.half!r} and {self.tail!r}")
        if not 0 <= self.threshold <= 1:
            raise InputError(
                f"threshold is a probability between 0 and 1, not {self.threshold:g}"
            )
        if self.threshold > 0 and not self.fallback:
            raise InputError("to abstain below a threshold, name a fallback")

    def abstaining(
        self,
        threshold: float | None = None,
        fallback: str | None = None,
        scope: float | None = None,
    ) -> Confidence:
        """The same with another threshold, fallback or least chance of belonging; None changes
        nothing.

        A threshold of 0 is meant as never: then scope is 0 too, unless it is given. With a scope
        of 0 every domain has its own text.
        """
        if scope is None and threshold == 0:
            scope = 0.0
        known = self.scope
        if known is not None and scope is not None:
            known = replace(known, least=scope)
        return replace(
            self,
            threshold=self.threshold if threshold is None else threshold,
            fallback=self.fallback if fallback is None else fallback,
            scope=known,
            outside=() if scope == 0 else self.outside,
        )

    @classmethod
    def of_json(cls, facts: Mapping[str, Any]) -> Confidence:
        """As a manifest has it; one from before scopes were learnt has none."""
        facts = {"scope": None, "outside": (), **facts}
        scope = Scope(**facts["scope"]) if facts["scope"] else None
        return cls(**facts | {"scope": scope, "outside": tuple(facts["outside"])})

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest: what is there only at times is left out where it is not."""
        facts = asdict(self) | {"outside": list(self.outside)}
        return {
            name: value
            for name, value in facts.items()
            if name not in ("scope", "half", "tail", "outside") or value
        }


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of all settings.

    holdout: the share of documents kept for evaluation and never part of the sums.
    encoder: where features come from, if nothing else is named.
    """

    sampling: Sampling
    holdout: float
    weighting: Weighting
    ridge: Ridge
    normalise_columns: bool
    selector: Selector
    encoder: str


PLAIN_ENCODER = "smollm2"
"""The encoder of the published method."""

PRIVATE_ENCODER = "use+words+sentence"
"""The encoder of private rounds, which know runs of letters and sentences."""

DEFAULT = Preset(
    sampling=Sampling(window=32, stride=128, units=15, mistyped=8),
    holdout=0.05,
    weighting="equal",
    ridge=Ridge(),
    normalise_columns=False,
    selector=Selector(),
    encoder="use+words",
)

SENTENCE_SAMPLING = replace(DEFAULT.sampling, opening=8)
"""How documents are sampled for an encoder that reads sentences."""

PAPER = replace(
    DEFAULT,
    sampling=Sampling(window=1, max_tokens=1024),
    holdout=0.0,
    weighting="tokens",
    ridge=Ridge(0.01, relative=False),
    normalise_columns=True,
    selector=Selector("entropy", 10),
    encoder=PLAIN_ENCODER,
)

_PRESETS = {"default": DEFAULT, "paper": PAPER}


def preset(name: str) -> Preset:
    try:
        return _PRESETS[name]
    except KeyError:
        raise InputError(
            f"there is no preset {name!r}; there are {' and '.join(_PRESETS)}"
        ) from None
