"""Statistics → total → weights → compiled table → signed release: the whole path on one machine.

Knows the steps and their order; each step is somebody else's job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.compiled import Compiled, normalised_columns
from common.contextual import KIND, AnyEncoder, ContextualEncoder
from common.errors import EncoderMismatch, InputError
from common.evaluation import Calibration, Evaluation, calibrate, evaluate
from common.identity import Identity
from common.readout import compile_router
from common.records import labelled_texts
from common.release import ROUTER, Release, amend_release, load_release, refuse_foreign, router_file, save_release
from common.router import Confidence
from common.settings import Ridge, Selector, Weighting
from common.statistics_file import Prepared
from coordinator import leverage
from coordinator.solve import Solution, solve
from coordinator.total import Total, add_up


@dataclass(frozen=True, slots=True)
class Choices:
    """What the operator decides about a release."""

    weighting: Weighting
    ridge: Ridge
    normalise_columns: bool
    selector: Selector
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Published:
    """A release that was written, and the figures of its making."""

    release: str
    total: Total
    solution: Solution


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draft:
    """A router that was solved and compiled, ready to be signed."""

    total: Total
    solution: Solution
    compiled: Compiled
    encoder: AnyEncoder
    facts: dict[str, Any]


def publish(
    parts: Sequence[Prepared], encoder: AnyEncoder, choices: Choices, identity: Identity, folder: Path
) -> Published:
    """Make and sign a release; the order of the parts does not change a byte of it."""
    return sign(draft(parts, encoder, choices), identity, folder)


def draft(parts: Sequence[Prepared], encoder: AnyEncoder, choices: Choices) -> Draft:
    """Add up, solve and compile; nothing is written."""
    total = add_up(parts, choices.weighting)
    if encoder.fingerprint != total.fingerprint:
        raise EncoderMismatch(
            f"the statistics were made with encoder {total.encoder_name} ({total.fingerprint}) but the one here is "
            f"{encoder.name} ({encoder.fingerprint}); name the right one with --encoder"
        )
    return compose(total, encoder, choices, solve(total.statistics, encoder.scale, choices.ridge))


def compose(total: Total, encoder: AnyEncoder, choices: Choices, solution: Solution, **more: Any) -> Draft:
    """Compile a solved total; `more` are facts of the manifest beyond the usual ones."""
    if choices.normalise_columns:
        solution = replace(solution, weights=normalised_columns(solution.weights))
    compiled = compile_router(encoder, total.sampling, solution.weights)
    facts = _facts(total, encoder, choices, solution) | more
    return Draft(total, solution, compiled, encoder, facts)


def sign(made: Draft, identity: Identity, folder: Path) -> Published:
    """Write a draft as a signed release."""
    definition = made.encoder.definition
    release = save_release(folder, made.facts, made.solution.weights, made.compiled, definition, identity)
    return Published(release, made.total, made.solution)


def issue(made: Draft, identity: Identity, folder: Path) -> Published:
    """Write a draft as a signed release, and beside it what the operator alone keeps: how to tell leverage.

    That comes first, so that whoever sees the release finds it there. A contextual encoder has no table to make it of.
    """
    refuse_foreign(folder, identity.public)
    if isinstance(made.encoder, ContextualEncoder):
        leverage.companion(folder).unlink(missing_ok=True)
    else:
        router = hashlib.sha256(router_file(made.solution.weights, made.compiled)).hexdigest()
        sketch = leverage.make(made.total.statistics, made.encoder, made.total.sampling)
        leverage.save(folder, replace(sketch, router=router))
    return sign(made, identity, folder)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A release that was calibrated and signed again."""

    release: str
    calibration: Calibration
    evaluation: Evaluation

    @property
    def figures(self) -> dict[str, Any]:
        """What the manifest records: counts and rates over the held-out text, none of the text itself."""
        return {**asdict(self.calibration), **self.evaluation.to_json()}


def calibrate_release(
    folder: Path,
    data: Path,
    fields: Sequence[str],
    changes: dict[str, Any],
    identity: Identity,
    model: Path | None = None,
    device: str = "auto",
) -> Calibrated:
    """Fit a release's confidence on held-out text. Only the coordinator who signed it may change it.

    What lies beside it to tell leverage learns what is usual on this text.
    """
    loaded = load_release(folder, model=model, device=device)
    if loaded.signer != identity.public:
        raise InputError(
            f"the release was signed by {loaded.signer[:12]}… and your key is {identity.public[:12]}…; "
            "name the coordinator's key with --key-file"
        )
    router = loaded.router
    texts = labelled_texts(data, router.domains, fields)
    fitted = calibrate(router, texts)
    facts = {"temperature": fitted.temperature, "growth": fitted.growth, "calibrated": True, **changes}
    confidence = Confidence(**router.confidence.to_json() | facts)
    result = Calibrated("", fitted, evaluate(router, texts))
    _note_usual(folder, loaded, texts)
    amended = amend_release(folder, {"confidence": confidence.to_json(), "evaluation": result.figures}, identity)
    return replace(result, release=amended)


def _note_usual(folder: Path, loaded: Release, texts: Mapping[str, Sequence[str]]) -> None:
    found = leverage.load_if_whole(folder, loaded.manifest["files"][ROUTER])
    if found is not None:
        ids = ([loaded.router.tokenizer.encode(text) for text in own] for own in texts.values())
        leverage.save(folder, replace(found, usual=leverage.usual(found, ids)))


def _facts(total: Total, encoder: AnyEncoder, choices: Choices, solution: Solution) -> dict[str, Any]:
    return {
        "domains": list(total.domains),
        "masses": total.masses,
        "cohort": {"holders": total.holders},
        "encoder": {
            "name": total.encoder_name,
            "fingerprint": encoder.fingerprint,
            "rows": encoder.rows,
            "width": encoder.width,
            "scale": encoder.scale,
            **({"kind": KIND, "weights": encoder.weights} if isinstance(encoder, ContextualEncoder) else {}),
        },
        "sampling": total.sampling.to_json(),
        "holdout": total.holdout,
        "weighting": choices.weighting,
        "ridge": choices.ridge.to_json(),
        "normalise_columns": choices.normalise_columns,
        "selector": choices.selector.to_json(),
        "confidence": choices.confidence.to_json(),
        "solved": {
            "ridge": solution.ridge,
            "condition": solution.condition,
            "residual": solution.residual,
            "device": solution.device,
        },
        "evaluation": None,
        "parent": None,
    }
