"""KV pages between two processes, each link against a plain socket in the same run. Run by `make bench`.

    PYTHONPATH=tests:tests/contract python tests/bench/transfer.py [REPEATS]

Prints a table: the median rate of whole transfers of 160 blocks of the small model in bfloat16 (59 MB: pages read,
framed, checksummed, sent, verified, written to pages), and its ratio to the plain socket's.
"""

import socket
import statistics
import sys
import threading
import time

from carrier_pair import Pair, pairs_of_peers

from headrace.core.layout import KvLayout
from headrace.transfer.carrier import TransferStatus

SMOLLM2 = KvLayout(layers=30, kv_heads=3, head_dim=64, block_tokens=16, dtype="bfloat16")
BLOCKS = 160
MB = 1e6


def transfer_rate(pair: Pair) -> float:
    """MB/s of one whole transfer, from its first command to the receiver's report."""
    ticket = pair.ticket(BLOCKS)
    began = time.perf_counter()
    pair.d.receive(ticket, tuple(range(BLOCKS)), 60.0)
    pair.p.send(ticket, 60.0)
    pair.p.advance(ticket.transfer, tuple(range(BLOCKS)))
    report = pair.d.report(60.0)
    took = time.perf_counter() - began
    if report.status is not TransferStatus.COMPLETE:
        raise SystemExit(f"the transfer ended {report.status.value}: {report.error}")
    pair.p.report(60.0)
    return report.payload_bytes / took / MB


def socket_rate() -> float:
    """MB/s of the same bytes through one loopback connection between two threads: no framing, no check."""
    payload = bytes(BLOCKS * SMOLLM2.block_bytes)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            sending = threading.Thread(target=sender.sendall, args=(payload,))
            began = time.perf_counter()
            sending.start()
            left = memoryview(bytearray(len(payload)))
            while left:
                left = left[receiver.recv_into(left) :]
            took = time.perf_counter() - began
            sending.join()
    return len(payload) / took / MB


def main(repeats: int) -> None:
    ceiling = statistics.median(socket_rate() for _ in range(repeats))
    print("| link | MB/s | of a plain socket |")
    print("|---|---|---|")
    print(f"| plain socket | {ceiling:.0f} | 1.00 |")
    with pairs_of_peers() as make:
        for link in ("ucx", "tcp"):
            pair = make(f"{link}-process", SMOLLM2)
            rate = statistics.median([transfer_rate(pair) for _ in range(repeats)])
            print(f"| {link} | {rate:.0f} | {rate / ceiling:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
