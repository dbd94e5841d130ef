"""All the routers of a comparison, in the order of its table."""

from __future__ import annotations

from common.errors import InputError
from simulations.lab.routers.knn import KNN
from simulations.lab.routers.modem import MODEM
from simulations.lab.routers.ours import OURS
from simulations.lab.routers.plain import RANDOM, SINGLE
from simulations.lab.routers.ridge import IR3DE
from simulations.lab.routers.tables import CROSS_ENTROPY, NAIVE_BAYES
from simulations.lab.routers.task import Method

METHODS = {each.key: each for each in (RANDOM, SINGLE, KNN, MODEM, NAIVE_BAYES, CROSS_ENTROPY, IR3DE, OURS)}


def method(key: str) -> Method:
    if key not in METHODS:
        raise InputError(f"there is no router {key!r}; there are {', '.join(METHODS)}")
    return METHODS[key]
