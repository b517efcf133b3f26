"""KV pages between two processes, each link against a plain socket in the same run. Run by `make bench`.

    PYTHONPATH=tests:tests/contract python tests/bench/transfer.py [REPEATS]

Prints a table: the median rate of whole transfers of 160 blocks of the small model in bfloat16 (59 MB: pages read,
framed, checksummed, sent, verified, written to pages), and its ratio to the plain socket's.
"""

import socket
import statistics
import subprocess
import sys
import time

from carrier_pair import Pair, pairs_of_peers

from headrace.core.layout import KvLayout
from headrace.telemetry import logs
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


SENDER = """
import socket, sys
payload = bytes(int(sys.argv[2]))
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    while connection.recv(1):
        connection.sendall(payload)
"""


def socket_rates(repeats: int) -> list[float]:
    """MB/s of the same bytes through one loopback connection from another process: no framing, no check."""
    size = BLOCKS * SMOLLM2.block_bytes
    buffer = memoryview(bytearray(size))
    rates = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = subprocess.Popen([sys.executable, "-c", SENDER, str(server.getsockname()[1]), str(size)])
        receiver, _ = server.accept()
        with receiver:
            for _ in range(repeats + 1):
                began = time.perf_counter()
                receiver.sendall(b"!")
                left = buffer
                while left:
                    left = left[receiver.recv_into(left) :]
                rates.append(size / (time.perf_counter() - began) / MB)
        sender.wait(timeout=10)
    return rates[1:]  # the first one also pays for fresh memory


def main(repeats: int) -> None:
    logs.setup("bench", level="warning")
    ceiling = statistics.median(socket_rates(repeats))
    print("| link | MB/s | of a plain socket |")
    print("|---|---|---|")
    print(f"| plain socket | {ceiling:.0f} | 1.00 |")
    with pairs_of_peers() as make:
        for link in ("ucx", "tcp"):
            pair = make(f"{link}-process", SMOLLM2)
            transfer_rate(pair)
            rate = statistics.median([transfer_rate(pair) for _ in range(repeats)])
            print(f"| {link} | {rate:.0f} | {rate / ceiling:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
