"""The sending process of a hand-off: the program, and what calls it from the process that measures.

Calls and answers are pickled over the child's standard input and output; it lives as long as its input. The program
prints nothing itself.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from headrace.bench.handoff_sender import Sender
from headrace.core.errors import HeadraceError, InternalError, Unavailable
from headrace.telemetry import logs

_END_S = 10.0


class ChildSender:
    """A Sender in a process of its own, under the same methods: any call blocks until it is answered.

    Raises HeadraceError as the sender does, and Unavailable if it died. prefix: words before the command.
    """

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "headrace.bench.handoff_child"]
        # A terminal's Ctrl-C is for the process that measures, which ends this one.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        self._one_at_a_time = threading.Lock()

    def call(self, method: str, *args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            try:
                pickle.dump((method, args), self._process.stdin)
                self._process.stdin.flush()
                answer, error = pickle.load(self._process.stdout)
            except (OSError, EOFError) as broken:
                raise Unavailable("The process that sends the pages ended before its answer.") from broken
        if error is not None:
            raise error
        return answer

    def abandon(self) -> None:
        """Kill it: calls in progress raise Unavailable, and so do others."""
        self._process.kill()

    def end(self) -> None:
        """It ends when its input does; it is killed if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, and did not read what it was told
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._process.stdout.close()


def main() -> int:
    logs.setup("bench-sender", level="warning")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not mix with the answers
    sender = Sender()
    try:
        while True:
            try:
                method, args = pickle.load(sys.stdin.buffer)
            except EOFError:
                return 0
            pickle.dump(_answer(sender, method, args), answers)
            answers.flush()
    finally:
        sender.close()


def _answer(sender: Sender, method: str, args: tuple[Any, ...]) -> tuple[Any, HeadraceError | None]:
    try:
        return getattr(sender, method)(*args), None
    except HeadraceError as error:
        return None, error
    except Exception as error:
        return None, InternalError(f"The process that sends the pages broke: {type(error).__name__}: {error}.")


if __name__ == "__main__":
    sys.exit(main())
