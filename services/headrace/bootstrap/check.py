"""`headrace config check FILE`: what each process of a deployment would be told, or why it would not start."""

import yaml

from headrace.bootstrap.placement import pool_size
from headrace.config import NAMES, SECTIONS, effective, read
from headrace.config_commands import CheckConfig
from headrace.config_file import load


def run(config: CheckConfig) -> int:
    """Print every process's effective configuration as YAML. Raises StartupError at the first mistake."""
    document = load(config.file, NAMES)
    flags = [f"--config={config.file}"]
    # Where no process is named, what stands there is for all that may be started with it.
    named = document.sections or (() if document.pools else NAMES.sections)
    told = {name: effective(read(SECTIONS[name], flags)) for name in named}
    for pool in document.pools:
        worker = effective(read(SECTIONS["worker"], [*flags, f"--pool={pool}"]))
        told[f"pool {pool}"] = {**pool_size(document, pool).model_dump(), **worker}
    print(yaml.safe_dump(told, sort_keys=False), end="")
    return 0
