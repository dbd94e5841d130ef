"""What pyproject.toml cannot say: the compiled module; the description, which is README with links
that work anywhere; `ridgeway` is made of the folders beside it, also where a source distribution
has left its links out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
FOLDERS = ("client", "common", "coordinator", "serving", "simulations")
NATIVE = "ridgeway/common/native"
SOURCES = ("module", "letter_runs", "row_means", "sentences", "token_sums", "unigram")
HEADERS = ("native", "runs")


def absolute(links: str, home: str) -> str:
    """The text with links to the repository's files and pictures at their address."""
    pictures = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:)", rf"\1{home}/raw/main/", links)
    return re.sub(r"(\]\()(?![a-z]+:|#)", rf"\1{home}/blob/main/", pictures)


for name in FOLDERS:
    link = HERE / "ridgeway" / name
    if not link.exists():
        link.symlink_to(Path("..", name))

home = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["urls"]["Source"]
setup(
    long_description=absolute((HERE / "README.md").read_text(encoding="utf-8"), home),
    long_description_content_type="text/markdown",
    # Texts become ids, and ids become sums, many times as fast with it. Where there is no compiler
    # the build warns, and Python does the work.
    ext_modules=[
        Extension(
            "ridgeway._native",
            sources=[f"{NATIVE}/{name}.c" for name in SOURCES],
            depends=[f"{NATIVE}/{name}.h" for name in HEADERS],
            # Paths in debug symbols would make two builds differ.
            extra_compile_args=["-O3", "-ffp-contract=off", "-g0"],
            libraries=["m"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
