"""NVFLARE's homomorphic encryption: vectors are encrypted, added up as they are, and decrypted.

All clients have one secret key, which the server has not.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import tenseal
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
)
from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
from nvflare.lighter.impl.he import HEBuilder

from ridgeway.simulations.bench.peer import Answered, answer_request


def encrypted_sum(request: Any) -> Answered:
    """The sum over those who send, with the parameters that NVFLARE's provisioning chooses."""
    logging.disable(logging.ERROR)
    rows = np.load(request["vectors"]) / request["largest"]
    senders = rows[: len(rows) - request["away"]]
    started = time.process_time()
    builder = HEBuilder()
    builder.initialize(None, None)
    client = tenseal.context_from(builder.get_serialized_context(is_client=True))
    server = tenseal.context_from(builder.get_serialized_context())
    context = FLContext()
    encryptor = HEModelEncryptor(weigh_by_local_iter=False)
    encryptor.tenseal_context = client
    encryptor.encrypt_layers = [True]
    helper = WeightedAggregationHelper(weigh_by_local_iter=False)
    size = 0
    for number, row in enumerate(senders):
        encrypted, _ = encryptor.encryption({"sum": row}, context)
        sent = encrypted["sum"].serialize()
        size = len(sent)
        arrived = {"sum": tenseal.ckks_vector_from(server, sent)}
        helper.add(arrived, 1.0, str(number), 0)
    mean = helper.get_result()["sum"].serialize()
    decryptor = HEModelDecryptor()
    decryptor.tenseal_context = client
    opened = decryptor.decryption({"sum": mean}, {"sum": True}, context)
    total = np.array(opened["sum"]) * len(senders)
    seconds = time.process_time() - started
    error = np.abs(total - senders.sum(axis=0)).max() * request["largest"]
    return {"seconds": seconds, "bytes": size, "error": float(error)}


if __name__ == "__main__":
    answer_request(encrypted_sum)
