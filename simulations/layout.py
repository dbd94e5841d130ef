"""A whole federation in a folder: corpora dealt out to holders, holders' folders, a coordinator's folder.

Made with the same code that makes real ones. Knows nothing of how a round is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from client.holder import Settings as HolderSettings
from client.policy import Policy
from client.roster import pin
from client.setup import CARD, create_holder
from common.cohort import Mode
from common.contextual import AnyEncoder
from common.encoder_sources import find_encoder
from common.errors import InputError
from common.files import write_whole
from common.invite import Card, Place, read_paper
from common.masking.agreement import SMALLEST_COHORT
from common.settings import DEFAULT, Weighting
from coordinator.federation import Federation, RoundSettings, usual_settings
from coordinator.setup import create_federation
from simulations import corpora

NOWHERE = "127.0.0.1:1"
NO_BUNDLE = "0" * 64


@dataclass(frozen=True, slots=True)
class Village:
    """A simulated federation.

    nodes: the holders that are there, by name, in the order of their folders' names.
    """

    folder: Path
    federation: Federation
    nodes: Mapping[str, Path]
    tests: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]


def settle(
    folder: Path,
    found: Sequence[corpora.Corpus],
    *,
    holders: int | None = None,
    drop: Sequence[str] = (),
    encoder: str = "smollm2",
    loaded: AnyEncoder | None = None,
    mode: Mode = "masked",
    weighting: Weighting = DEFAULT.weighting,
) -> Village:
    """Deal the corpora out and make every folder. Holders in `drop` are admitted but are not there."""
    dealt = deal(found, len(found) if holders is None else holders)
    unknown = sorted(set(drop) - set(dealt))
    if unknown:
        raise InputError(f"there is no holder {unknown[0]!r} to drop; there are {', '.join(dealt)}")
    if mode == "masked" and len(dealt) < SMALLEST_COHORT:
        raise InputError(
            f"a masked round needs {SMALLEST_COHORT} holders, and there are {len(dealt)}; ask for more with --holders, "
            "or for a round in the clear with --clear"
        )
    shared = loaded or find_encoder(encoder)
    settings = usual_settings(shared, encoder=encoder, mode=mode, weighting=weighting, round=RoundSettings(wait=0.0))
    federation = Federation(create_federation(folder / "coordinator", settings).folder, encoder=shared)
    homes, roster = {}, []
    for name, (domain, texts) in dealt.items():
        homes[name] = _holder(folder, name, domain, texts, federation)
        card = read_paper(homes[name] / CARD, Card)
        federation.ledger.admit(name, card, weight=1)
        roster.append(Place(name=name, domain=domain, key=card.key))
    for name, home in homes.items():
        pin(home, [place for place in roster if place.name != name])
        if name in drop:
            home.rename(folder / f"away-{name}")
    nodes = {name: home for name, home in homes.items() if name not in drop}
    tests = {each.name: each.test for each in found}
    return Village(folder, federation, nodes, tests, {name: len(texts) for name, (_, texts) in dealt.items()})


def deal(found: Sequence[corpora.Corpus], holders: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each holder's domain and texts: domains take turns, and the texts of one are dealt to its holders like cards."""
    if holders < len(found):
        raise InputError(f"{len(found)} domains need at least as many holders, not {holders}")
    dealt = {}
    for place, each in enumerate(found):
        own = (holders - place + len(found) - 1) // len(found)
        if own > len(each.train):
            raise InputError(f"{each.name!r} has {len(each.train)} documents, too few for {own} holders")
        for turn in range(own):
            name = each.name if own == 1 else f"{each.name}-{turn + 1:0{len(str(own))}}"
            if name in dealt:
                raise InputError(f"two holders would be called {name!r}; rename one of the domains")
            dealt[name] = (each.name, each.train[turn::own])
    return dict(sorted(dealt.items()))


def _holder(folder: Path, name: str, domain: str, texts: Sequence[str], federation: Federation) -> Path:
    corpus = folder / "corpora" / f"{name}.jsonl"
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    write_whole(corpus, "".join(lines).encode(errors="replace"))
    settings = federation.settings
    policy = Policy(
        coordinator=federation.identity.public,
        encoders=(federation.terms.encoder,),
        weightings=(settings.weighting,),
        **settings.sampling.sampling.to_json(),
        require_masking=settings.mode == "masked",
        min_cohort=SMALLEST_COHORT if settings.mode == "masked" else 2,
    )
    home = folder / "holders" / name
    create_holder(
        home,
        HolderSettings(
            domain=domain,
            corpus=(str(corpus.resolve()),),
            holdout=DEFAULT.holdout,
            encoder=settings.encoder if settings.encoder.startswith("dir:") else None,
            address=NOWHERE,
            bundles=(NO_BUNDLE,),
            policy=policy,
        ),
    )
    return home
