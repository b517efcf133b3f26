"""What both Dockerfiles promise, read from their text, and what goes into them, asked of the real thing.

The build itself is `make images`: it needs root and buildah.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile import Dockerfile

from headrace.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "build_images.sh"
NAMES = ("control", "worker")
HEAVY = ("torch", "triton", "ucxx", "nvidia", "rmm")


def image(name: str) -> Dockerfile:
    return Dockerfile.read(ROOT / "docker" / f"{name}.Dockerfile")


def requirements(*extras: str) -> list[str]:
    command = [sys.executable, "docker/requirements.py", *extras]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("name", NAMES)
class TestDockerfile:
    def test_base_is_a_debian_that_can_be_chosen(self, name: str) -> None:
        instructions = image(name).instructions
        assert (instructions[0].word, instructions[0].text) == ("ARG", "BASE=debian:bookworm-slim")
        assert {each.text.split()[0] for each in instructions if each.word == "FROM"} == {"${BASE}"}

    def test_what_builds_stays_behind(self, name: str) -> None:
        dockerfile = image(name)
        assert dockerfile.stages == 2
        assert dockerfile.last_stage("COPY") == ["--from=build /opt/headrace /opt/headrace"]
        assert not re.search(r"\bpip\b|venv", " ".join(dockerfile.last_stage("RUN")))

    def test_nobody_is_root(self, name: str) -> None:
        user = image(name).last("USER")
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, so that Kubernetes can tell that it is not root"

    def test_one_entry_point(self, name: str) -> None:
        dockerfile = image(name)
        assert json.loads(dockerfile.last("ENTRYPOINT")) == ["headrace"]
        assert json.loads(dockerfile.last("CMD"))[0] in COMMANDS

    def test_health_is_asked_at_an_exposed_port(self, name: str) -> None:
        dockerfile = image(name)
        words = json.loads(dockerfile.last("HEALTHCHECK").partition("CMD ")[2])
        assert words[:2] == ["headrace", "health"]
        assert re.search(r":(\d+)", words[2].removeprefix("http:"))[1] in dockerfile.last("EXPOSE").split()  # type: ignore[index]

    def test_no_secret_is_baked_in(self, name: str) -> None:
        texts = " ".join(each.text for each in image(name).instructions if each.word in {"ENV", "ARG"})
        assert not re.search(r"TOKEN|SECRET|PASSWORD|API_KEY", texts)

    def test_what_it_copies_is_there_and_let_through(self, name: str) -> None:
        copied = [each.text for each in image(name).instructions if each.word == "COPY" and "--from" not in each.text]
        sources = [source for text in copied for source in text.split()[:-1]]
        allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        assert [source for source in sources if not (ROOT / source).exists()] == []
        assert set(sources) <= allowed


def test_nothing_else_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines, "everything is left out but what is named"
    named = [line[1:] for line in lines if line.startswith("!")]
    assert not any(
        fnmatch.fnmatch(secret, pattern) for secret in (".git", ".env", ".venv", "tests") for pattern in named
    )


def test_only_the_worker_has_torch() -> None:
    assert [wanted for wanted in requirements() if wanted.startswith(HEAVY)] == []
    assert {wanted.split(">")[0].split("-")[0] for wanted in requirements("worker")} >= {"torch", "ucxx"}


def test_the_worker_is_built_with_a_compiler_for_kernels_that_would_be_left_out_without() -> None:
    dockerfile = image("worker")
    building = [each.text for each in dockerfile.instructions if each.word == "RUN" and each.stage == 0]
    assert "g++" in building[0].split()
    assert "g++" not in " ".join(dockerfile.last_stage("RUN"))


@pytest.mark.parametrize("command", ["frontend", "gateway", "router", "health", "config"])
def test_control_starts_where_nothing_heavy_is_installed(command: str) -> None:
    program = (
        f"import sys, importlib\nfor name in {HEAVY}: sys.modules[name] = None\n"
        "from headrace.cli import COMMANDS, main\n"
        f"importlib.import_module(COMMANDS[{command!r}][1].partition(':')[0])\n"
        f"main([{command!r}, '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert f"headrace {command}" in done.stdout


# Stands for buildah and debootstrap where a build fails: writes down what it was asked for, and fails as pip does.
FAILING_BUILDAH = """#!/bin/sh
echo "$*" >>"$ASKED"
case "$1" in
    from) echo container ;;
    images) echo sha256:own ;;
    bud) echo "ERROR: No matching distribution found for $MISSING"; exit 1 ;;
esac
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the script wants root")
@pytest.mark.parametrize(
    ("missing", "index", "hinted"),
    [("torch<2.14,>=2.13", {}, True), ("torch", {"TORCH_CPU_INDEX_URL": ""}, False), ("grpcio", {}, False)],
)
def test_a_build_that_fails_leaves_what_is_not_its_own(
    missing: str, index: dict[str, str], hinted: bool, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    for name, text in {
        "buildah": FAILING_BUILDAH,
        "debootstrap": '#!/bin/sh\nfor last; do :; done\nmkdir "$last"',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if name not in {"KEEP", "TORCH_CPU_INDEX_URL"}}
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(asked), "MISSING": missing, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["/bin/bash", SCRIPT, "worker"],
        env={**inherited, **own, **index},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert ("try TORCH_CPU_INDEX_URL= " in done.stderr.splitlines()[-1]) is hinted
    commands = [line.split() for line in asked.read_text().splitlines()]
    (label,) = (words[2] for words in commands if words[:2] == ["config", "--label"])
    assert ["images", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"] in commands
    assert [words for words in commands if words[0] == "rmi"] == [["rmi", "--force", "sha256:own"]]


def test_the_build_is_skipped_with_a_reason_where_it_cannot_be_done() -> None:
    bare = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(["/bin/bash", SCRIPT], env=bare, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert re.fullmatch(r"skipped: .*buildah.*\n", done.stdout), (done.stdout, done.stderr)
