"""Triton's kernels compile for GPUs that are not here: their compiler needs none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.kernels

COMPILE = """
import sys
import warnings
warnings.simplefilter("ignore")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from ridgeway.client.sums.gpu import digit_planes, kernels

KINDS = {"table": "*i16", "ids": "*i32", "bounds": "*i32", "planes": "*i8"}
KINDS |= {"total": "*i64", "tiles": "*i32"}
KINDS |= {"letters": "*u8", "starts": "*i64", "owners": "*i64", "counts": "*i32"}
TILE = {"DOWN": kernels.TILE, "ACROSS": kernels.TILE, "DEPTH": kernels.DEPTH}
CASES = [
    (
        kernels.mean_planes,
        {"WINDOWS": digit_planes.WINDOWS, "COLUMNS": kernels.SLICE},
        {"num_warps": kernels.MEAN_WARPS},
    ),
    (kernels.add_tiles, TILE, {"num_warps": kernels.PRODUCT_WARPS, "num_stages": kernels._STAGES}),
    (kernels.count_words, {"SHORTEST": 2, "LONGEST": 3, "TOKENS": kernels.COUNTED_TOKENS}, {}),
]
for kernel, constants, options in CASES:
    names = kernel.arg_names
    wide = {"first": "i64", "second": "i64"} if kernel is kernels.count_words else {}  # multipliers
    signature = {name: "constexpr" if name in constants else (KINDS | wide).get(name, "i32") for name in names}
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    made = compile(ASTSource(kernel, signature, constants), target=target, options=options)
    print(kernel.__name__, "wgmma" in made.asm["ptx"], "mma.sync" in made.asm["ptx"])
"""


@pytest.mark.parametrize(("gpu", "products"), [(80, (False, True)), (90, (True, False))])
def test_kernels_compile_for_a_gpu(gpu: int, products: tuple[bool, bool]) -> None:
    """For Ampere and for Hopper, with integer products on tensor cores."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE, str(gpu)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = {name: (wgmma == "True", mma == "True") for name, wgmma, mma in map(str.split, done.stdout.splitlines())}
    neither = dict.fromkeys(("mean_planes", "count_words"), (False, False))
    assert found == {**neither, "add_tiles": products}
