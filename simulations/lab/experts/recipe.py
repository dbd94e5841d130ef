"""How experts are trained and scored, as numbers: in full for a card, short for two cores; and the key of the result.

Knows settings. Knows nothing of models or routers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simulations.lab.experts import CODE
from simulations.lab.setting import Setting


@dataclass(frozen=True, slots=True)
class Recipe:
    """
    tokens:    that an expert is trained on: as many rounds through its text as that takes.
    length:    of a training sequence, in tokens. batch: sequences a step.
    layers:    the last layers, with the norm behind them, that are trained; 0 trains every parameter.
    rates:     learning rates: the one that does best on held-out text is taken, where there are several.
    trial:     training tokens of an expert while a rate is sought. held: tokens of held-out text a domain, then.
    documents: test texts of a domain at most; 0 takes all. longest: tokens after which a test text is cut.
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
        tests = f"at most {self.documents} test texts a domain" if self.documents else "all test texts"
        return (
            f"{parts} trained on {self.tokens:,} tokens a domain in sequences of {self.length}, "
            f"{self.batch} a step; {tests}, cut at {self.longest} tokens"
        )


FULL = Recipe(1_000_000, 512, 16, 0, (1e-4, 3e-4, 1e-3), 200_000, 30_000, 0, 512)
SHORT = Recipe(1024, 128, 1, 4, (5e-4,), 0, 0, 8, 64)


def result_key(setting: Setting, recipe: Recipe, model: str, seed: int) -> Mapping[str, Any]:
    """All that decides likelihoods, the machine apart. The setting's test texts are those that are scored."""
    about = {**asdict(recipe), "rates": list(recipe.rates)}
    return {"setting": setting.digest, "recipe": about, "model": model, "seed": seed, "code": CODE}
