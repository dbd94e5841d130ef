"""What pyproject.toml cannot say: the description is README with links that work anywhere, and `ridgeway` is made of
the folders beside it, also where a source distribution has left its links out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
FOLDERS = ("client", "common", "coordinator", "simulations")


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
)
