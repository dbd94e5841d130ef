"""Decisions and explanations as JSON: the same on the command line and over HTTP.

Knows the router's records. Knows nothing of files, HTTP or how they are shown.
"""

from __future__ import annotations

from typing import Any

from common.router import Decision, Explanation, Router


def decision_json(decision: Decision, router: Router) -> dict[str, Any]:
    return {**decision._asdict(), "calibrated": router.confidence.calibrated, "release": router.release}


def explanation_json(explanation: Explanation, router: Router) -> dict[str, Any]:
    """The decision, and what each token added to it; `parts` follow the order of `order`."""
    return {
        **decision_json(explanation.decision, router),
        "runner_up": explanation.runner_up,
        "margin": explanation.margin,
        "order": list(router.domains),
        "explanation": [token._asdict() for token in explanation.tokens],
    }
