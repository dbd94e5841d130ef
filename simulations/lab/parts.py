"""The parts of the laboratory, in the order of a report, with what help says of each.

The module `simulations.lab.NAME` holds the part itself: KEY, TITLE, `run(plan)`, and perhaps CODE, a number that
changes when its results would.
"""

PARTS = {
    "accuracy": "How often prompts reach the right expert, beside other routers.",
    "selectors": "The ways to choose a domain from a prompt's tokens.",
    "membership": "Holders that join, leave and are removed.",
    "dropouts": "Holders that fall away in the middle of a round.",
    "scaling": "Time, memory and traffic as holders and text grow.",
    "privacy": "What can be learnt from what is shared.",
    "experts": "Answers of the experts that prompts are sent to.",
}
