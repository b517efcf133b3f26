"""The directory of the logs of a command's processes, once the command is over: whether it stays.

Logs are of use where something failed and was logged; else nothing is left behind.
"""

import shutil
from contextlib import suppress
from pathlib import Path


def put_away(directory: Path, *, keep: bool, ours: bool = True) -> bool:
    """Whether there are logs that stay. keep: they are wanted. ours: it is removed with all that is in it if not."""
    stays = keep and any(each.is_file() and each.stat().st_size for each in directory.glob("*"))
    if ours and not stays:
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
    return stays
