"""Decisions and explanations as JSON: the same on the command line and over HTTP.

Knows the router's records. Knows nothing of files, HTTP or how they are shown.
"""

from __future__ import annotations

from typing import Any

from ridgeway.common.routing.router import Decision, Explanation, Router


def fields(decision: Decision) -> dict[str, Any]:
    """What a decision says by itself; written out, since `_asdict` takes three times as long."""
    domain, confidence, scores, abstained, best, tokens = decision
    return {
        "domain": domain,
        "confidence": confidence,
        "scores": scores,
        "abstained": abstained,
        "best": best,
        "tokens": tokens,
    }


def origin(router: Router) -> dict[str, Any]:
    """Where decisions come from, and whether their confidence means something."""
    return {"calibrated": router.confidence.calibrated, "release": router.release}


def decision_json(decision: Decision, router: Router) -> dict[str, Any]:
    return fields(decision) | origin(router)


def reasons(explanation: Explanation, router: Router) -> dict[str, Any]:
    """What each token added to a decision; `parts` follow the order of `order`."""
    return {
        "runner_up": explanation.runner_up,
        "margin": explanation.margin,
        "order": list(router.domains),
        "explanation": [token._asdict() for token in explanation.tokens],
    }


def explanation_json(explanation: Explanation, router: Router) -> dict[str, Any]:
    return decision_json(explanation.decision, router) | reasons(explanation, router)
