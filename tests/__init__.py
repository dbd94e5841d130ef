"""The tests of Ridgeway. What libraries read as they are first imported is set here, before any
test imports them.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(
        name, "1"
    )  # workers share the cores; threads that wait for each other take twice the time
