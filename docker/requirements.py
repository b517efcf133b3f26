"""Prints what pyproject.toml asks for, without and with the extras named: the images' layer of packages.

It is made before the sources are copied, so that a changed source file costs no download.
"""

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    wanted = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    print("\n".join(requirement for each in wanted for requirement in each))


if __name__ == "__main__":
    main(sys.argv[1:])
