"""The README's tree: every source file with the first sentence of its docstring. `--write` brings it up to date."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- tree -->\n```\n).*?(```\n<!-- /tree -->)", re.DOTALL)
LEFT_OUT = ("services/headrace/rpc/v1/", "docs/decisions/")
PHRASES = {
    ".ci": "what continuous integration runs",
    ".dockerignore": "what the images are made of",
    ".gitignore": "what git leaves alone",
    ".importlinter": "the layers, as contracts",
    "ARCHITECTURE.md": "one request, hop by hop, each hop with its file",
    "CONTRIBUTING.md": "house rules and how to work here",
    "LICENSE": "Apache-2.0",
    "Makefile": "the commands; `make help` lists them",
    "README.md": "this page",
    "deploy": "configurations, dashboards, alert rules, and building images without an engine",
    "docker": "two images: control (no torch) and worker",
    "docker-compose.yml": "a cluster on one host: Redis, frontend, prefill and decode worker",
    "docs": "decisions, figures, log of experiments, pages for users",
    "helm": "the chart: frontend, worker pools, Redis",
    "kernels": "what computes: C++ for CPUs, Triton for GPUs",
    "proto": "the wire, documented; generated code lands in services/headrace/rpc/v1",
    "pyproject.toml": "package, dependencies, tools",
    "services": "the processes",
    "setup.py": "build entry",
    "tests": "unit, contract, oracle, cluster and house tests",
}


def tracked() -> list[str]:
    """Files that git knows or would take, so that the tree is right before a commit too."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted(name for name in out.splitlines() if (ROOT / name).exists())


def phrase(name: str) -> str:
    """First sentence of a module's docstring, without the module's own name."""
    text = (ROOT / name).read_text()
    docstring = ast.get_docstring(ast.parse(text)) if name.endswith(".py") else None
    first = " ".join((docstring or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)`])\.(?:\s|$)", first)[0].rstrip(".") if first else ""


def render() -> str:
    """Top-level entries with a phrase each, then every file under `services/headrace`."""
    names = [name for name in tracked() if not name.startswith(LEFT_OUT)]
    lines = [
        f"{top + '/' if (ROOT / top).is_dir() else top:<22}{PHRASES[top]}"
        for top in sorted({name.split("/")[0] for name in names})
    ]
    lines += ["", "services/headrace/"]
    sources = [name.removeprefix("services/headrace/") for name in names if name.startswith("services/headrace/")]
    folder = ""
    for source in sorted(sources, key=lambda name: name.rpartition("/")[::2]):
        parent, _, leaf = source.rpartition("/")
        text = phrase(f"services/headrace/{source}")
        if parent != folder and text:
            lines.append(f"  {parent}/")
            folder = parent
        if text:
            indent = "    " if parent else "  "
            lines.append(f"{indent}{leaf:<{25 - len(indent)}} {text}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def written() -> str:
    match = BLOCK.search(README.read_text())
    assert match, "README.md has no <!-- tree --> block."
    return match.group(0)


def rewritten() -> str:
    return BLOCK.sub(lambda match: match.group(1) + render() + match.group(2), README.read_text())


if __name__ == "__main__" and "--write" in sys.argv:
    README.write_text(rewritten())
