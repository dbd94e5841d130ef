"""Corpora for simulations: those of this machine, or those of a folder.

Knows files of records. Knows nothing of holders or federations, so that it can be used without what they need.
"""

from __future__ import annotations

from pathlib import Path

from common.errors import InputError
from common.records import jsonl_texts
from common.statistics_file import check_domain_name
from simulations import corpora

TRAIN, TEST = ".train.jsonl", ".test.jsonl"


def read_corpora(data: Path | None) -> list[corpora.Corpus]:
    """The built-in corpora, or those of a folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl."""
    if data is None:
        return list(corpora.builtin())
    names = sorted(path.name.removesuffix(TRAIN) for path in data.glob(f"*{TRAIN}"))
    for name in names:
        check_domain_name(name)
    if len(names) < 2:
        raise InputError(f"{data} holds {len(names)} files named DOMAIN{TRAIN}; a simulation needs at least two")
    return [corpora.Corpus(name, _texts(data / f"{name}{TRAIN}"), _texts(data / f"{name}{TEST}")) for name in names]


def _texts(path: Path) -> tuple[str, ...]:
    if not path.exists():
        raise InputError(f"there is no {path.name} beside the training files; every domain needs one to be tested on")
    with path.open(encoding="utf-8", errors="replace") as lines:
        texts = tuple(jsonl_texts(lines, ["text"], str(path)))
    if not texts:
        raise InputError(f"{path} holds no text")
    return texts
