"""This machine in words: what a figure has to be read with."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

# Those that decide how fast products of matrices are.
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: that this process may use. load: processes that ran or waited over the last minute, on average."""

    processor: str
    instructions: tuple[str, ...]
    cores: int
    memory_gib: float
    load: float

    @property
    def words(self) -> str:
        sets = ", ".join(self.instructions) or "no vector instructions that are known here"
        return f"{self.cores} cores of {self.processor} ({sets}), {self.memory_gib:.0f} GiB of memory"


def this_machine() -> Machine:
    model, flags = _read(Path("/proc/cpuinfo"))
    return Machine(
        processor=model or platform.processor() or platform.machine(),
        instructions=tuple(name for flag, name in _INSTRUCTIONS.items() if flag in flags),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        load=round(os.getloadavg()[0], 2),
    )


def _read(cpuinfo: Path) -> tuple[str, frozenset[str]]:
    """The first processor's model and flags, both empty where the file has none."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields.get("model name", ""), frozenset(fields.get("flags", "").split())
