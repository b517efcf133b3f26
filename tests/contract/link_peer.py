"""A Link alone in a child process: `link_peer.py KIND send|post ADDRESS BYTES SIGNAL`.

Prints its address, sends or posts one frame (FRAME), and prints how that settled. With a SIGNAL other than 0 it
sends itself that signal as soon as a part of the frame it posted has arrived.
"""

import os
import sys
import threading

from link_drive import factory_of

from headrace.telemetry import logs
from headrace.transfer.link import FrameId

FRAME = FrameId(b"link-contract-01", 7)
FILL = 7


def main(kind: str, act: str, address: str, nbytes: int, sign: int) -> None:
    link = factory_of(kind).open()
    wake = os.eventfd(0)
    print(link.address, flush=True)
    buffer = memoryview(bytearray([FILL]) * nbytes)
    receipt = link.send(address, FRAME, buffer) if act == "send" else link.post(FRAME, buffer)
    if sign:
        threading.Thread(target=_signal_when_inside, args=(buffer, sign), daemon=True).start()
    while receipt.pending:
        link.progress(1.0, wake)
    print(receipt.state.name, flush=True)
    sys.stdin.readline()
    link.close()


def _signal_when_inside(buffer: memoryview, sign: int) -> None:
    while buffer[len(buffer) // 8] == FILL:
        os.sched_yield()
    os.kill(os.getpid(), sign)


if __name__ == "__main__":
    # Standard output speaks to the test, and standard error must stay empty: what is heard there is a library's noise.
    logs.setup("link-peer", level="critical")
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
