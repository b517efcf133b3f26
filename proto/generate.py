"""Generates the Python modules of every .proto under proto/ into services/, at the same path.

`generate.py` writes them; `generate.py --check` writes nothing and ends with 1 if what is committed differs.
"""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
SERVICES = PROTO.parent / "services"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def sources() -> list[Path]:
    return sorted(PROTO.rglob("*.proto"))


def generate(target: Path) -> None:
    """Write the modules of all sources below `target`. Raises SystemExit if protoc refuses a source."""
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}"]
    arguments += [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main([*arguments, *map(str, sources())]) != 0:
        raise SystemExit("protoc refused a source; its message stands above.")


def modules(root: Path) -> dict[Path, bytes]:
    """Generated files by their path below `root`, in the packages that have sources."""
    packages = sorted({source.parent.relative_to(PROTO) for source in sources()})
    files = [file for package in packages for kind in GENERATED for file in (root / package).glob(kind)]
    return {file.relative_to(root): file.read_bytes() for file in files}


def differences() -> list[str]:
    """Paths of generated modules that are missing, superfluous or not what the sources give."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        wanted = modules(Path(scratch))
    present = modules(SERVICES)
    return sorted(str(path) for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if the modules are out of date")
    if not parser.parse_args().check:
        generate(SERVICES)
        return 0
    stale = differences()
    if stale:
        print(f"Generated code is not what proto/ gives: {', '.join(stale)}. Run `make proto`.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
