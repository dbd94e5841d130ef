"""The part `privacy`: what the known attacks bring back of a holder's text out of exact sums, and
what rounds with differential privacy cost and protect.
"""

from __future__ import annotations

from ridgeway.simulations.experiments import exact_sums, private_rounds
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import ReportPart

_WORDS = (
    "The attacks are run on the exact sums of one holder, whose text is known here, so"
    " that the shares are true ones. The attacker is given what a coordinator sees: the"
    " public table, the window and the sums. A masked round shows a domain's column of B"
    " where it has a single holder, and otherwise the total of the cohort alone. The"
    " shares are lower bounds: a better attack may find more.",
    "Under differential privacy each document adds one vector of bounded length, seen"
    " through a public prior, and holders add noise. What a round adds up is the plain"
    " sum of what its members have noised, so rounds are added up here, with noise drawn"
    " from seeds.",
)
CUT = (
    "This is the short run: the encoder is cut to fewer tokens, which makes an attack"
    " easier, and to fewer columns, which makes it harder. The figures show how things"
    " change; a full run attacks the whole encoder."
)


def run(plan: ExperimentPlan) -> ReportPart:
    exact, left_out = exact_sums.attack_tables(
        plan, exact_sums.FULL_SIZES if plan.full else exact_sums.SHORT_SIZES
    )
    private, lacks = private_rounds.private_tables(
        plan,
        private_rounds.FULL_PRIVATE_SIZES
        if plan.full
        else private_rounds.SHORT_PRIVATE_SIZES,
    )
    words = _WORDS if plan.full else (*_WORDS, CUT)
    tables = (*exact, *private)
    return ReportPart("What the sums give away", words, tables, (*left_out, *lacks))
