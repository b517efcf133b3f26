"""UcxLink: frames over UCX tag messages, between processes and hosts. The only importer of the UCX binding.

Uses the binding's low-level calls on the caller's thread, without asyncio or a progress thread. Endpoints have peer
error handling, so a dead or closed peer ends what is under way; rendezvous is forced, so a send completes only when it
was received. UCX cannot cancel a receive from Python: a withdrawn one is completed by a message to oneself.
"""

import ctypes
import os
import select
import time
from dataclasses import dataclass

import structlog
import ucxx._lib.libucxx as ucx
from ucxx._lib.arr import Array

from headrace.core.errors import StartupError
from headrace.transfer.link import FrameId, Receipt, ReceiptState

_log = structlog.get_logger()
_MARKER_BYTES = 16
_CLOSE_S = 0.2
# Forced rendezvous: see the module. The rest keeps UCX from writing to standard error about peers that die.
_CONFIG = {"RNDV_THRESH": "0", "LOG_LEVEL": "fatal", "WARN_UNUSED_ENV_VARS": "n"}


@dataclass(slots=True, eq=False)
class _Peer:
    """An endpoint and whether UCX has declared it dead. address: "" for one that a peer opened."""

    address: str
    endpoint: ucx.UCXEndpoint
    dead: bool = False

    def mark_dead(self) -> None:
        self.dead = True


@dataclass(slots=True, eq=False)
class _Operation:
    """One UCX request with all that must outlive it. receipt: None for a message to or from ourselves.

    peer: of a send to another link. withdrawing: our own message was sent into this receive.
    """

    request: ucx.UCXRequest
    buffer: memoryview
    tag: int
    receipt: Receipt | None = None
    peer: _Peer | None = None
    withdrawing: bool = False


class UcxLink:
    """A UCX context, worker and listener on a free port of all interfaces; `host` is what peers are told.

    tls: the transports UCX may use. Those without peer error handling (cma) must not be among them.
    Posted buffers are at least 16 bytes.
    """

    def __init__(self, host: str, tls: str) -> None:
        self._operations: list[_Operation] = []
        self._dialed: dict[str, _Peer] = {}
        self._accepted: list[_Peer] = []
        # A secret of this life: a frame that begins with it came from ourselves, to complete a withdrawn receive.
        self._marker = memoryview(os.urandom(_MARKER_BYTES))
        try:
            self._context = ucx.UCXContext(_CONFIG | {"TLS": tls}, (ucx.Feature.TAG, ucx.Feature.WAKEUP))
            self._worker = ucx.UCXWorker(self._context, False, False)
            self._worker.init_blocking_progress_mode()
            self._listener = ucx.UCXListener.create(self._worker, 0, self._accept)
            own = ucx.UCXAddress.create_from_worker(self._worker)
            self._self_endpoint = ucx.UCXEndpoint.create_from_worker_address(self._worker, own, False)
        except ucx.UCXError as error:
            raise StartupError(
                f"UCX did not start with the transports {tls!r} ({error}).",
                remedy="Choose transports that this host has, or --transfer-link tcp.",
            ) from error
        self._event_fd = self._worker.epoll_file_descriptor
        self._address = f"{host}:{self._listener.port}"

    @property
    def address(self) -> str:
        return self._address

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        buffer[:_MARKER_BYTES] = bytes(_MARKER_BYTES)
        self._receive(_tag(frame), buffer, receipt)
        return receipt

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        tag = _tag(frame)
        try:
            peer = self._dial(address)
            request = peer.endpoint.tag_send(Array(buffer), ucx.UCXXTag(tag))
        except (ucx.UCXError, ValueError) as error:
            receipt.settle(ReceiptState.FAILED, f"{address} cannot be reached ({error})")
            return receipt
        self._operations.append(_Operation(request, buffer, tag, receipt, peer))
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        self._worker.progress()
        if self._settle():
            return
        # arm() refuses while UCX has something to do; what came between is then seen by the next call.
        if self._worker.arm():
            select.select([self._event_fd, wake_fd], [], [], timeout_s)
        self._worker.progress()
        self._settle()

    def close(self) -> None:
        for operation in self._operations:
            if operation.receipt is not None:
                self._withdraw(operation.receipt)
        give_up_at = time.monotonic() + _CLOSE_S
        while self._operations and time.monotonic() < give_up_at:
            self._worker.progress()
            self._settle()
        if self._operations:
            self._park()

    def _accept(self, request: int) -> None:
        """Called by UCX inside progress."""
        self._accepted.append(self._watched("", self._listener.create_endpoint_from_conn_request(request, True)))

    def _dial(self, address: str) -> _Peer:
        peer = self._dialed.get(address)
        if peer is None or peer.dead:
            host, _, port = address.rpartition(":")
            peer = self._watched(address, ucx.UCXEndpoint.create(self._worker, host, int(port), True))
            self._dialed[address] = peer
        return peer

    def _watched(self, address: str, endpoint: ucx.UCXEndpoint) -> _Peer:
        peer = _Peer(address, endpoint)
        endpoint.set_close_callback(peer.mark_dead)
        return peer

    def _receive(self, tag: int, buffer: memoryview, receipt: Receipt | None) -> None:
        request = self._worker.tag_recv(Array(buffer), ucx.UCXXTag(tag))
        self._operations.append(_Operation(request, buffer, tag, receipt))

    def _withdraw(self, receipt: Receipt) -> None:
        for operation in list(self._operations):
            if operation.receipt is receipt and operation.peer is not None:
                operation.peer.endpoint.close()
            elif operation.receipt is receipt and not operation.withdrawing:
                operation.withdrawing = True
                request = self._self_endpoint.tag_send(Array(self._marker), ucx.UCXXTag(operation.tag))
                self._operations.append(_Operation(request, self._marker, operation.tag))

    def _settle(self) -> bool:
        """Settle what UCX completed. True if anything was."""
        done = [operation for operation in self._operations if operation.request.completed]
        if not done:
            return False
        self._operations = [operation for operation in self._operations if not operation.request.completed]
        for operation in done:
            self._finish(operation)
        self._accepted = [peer for peer in self._accepted if not peer.dead]
        return True

    def _finish(self, operation: _Operation) -> None:
        error = _error_of(operation.request)
        ours = operation.withdrawing and error is None and operation.buffer[:_MARKER_BYTES] == self._marker
        if operation.withdrawing and not ours:
            # A peer's frame was first: our message still waits for a receive and gets one of its own.
            self._receive(operation.tag, memoryview(bytearray(_MARKER_BYTES)), None)
        if operation.receipt is None:
            return
        if ours:
            operation.receipt.settle(ReceiptState.FAILED, "withdrawn")
        elif error is not None:
            operation.receipt.settle(ReceiptState.FAILED, error)
        else:
            operation.receipt.settle(ReceiptState.DONE)

    def _park(self) -> None:
        """A peer may still use our memory, and closing a UCX worker fences nothing (and may spin while the peer is
        frozen). So the link is never progressed again and never freed: the reference is for the life of the process."""
        _log.warning("ucx.parked", address=self._address, operations=len(self._operations))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def _tag(frame: FrameId) -> int:
    """64 bits: 24 of the receiver's random bytes, the low 24 of its counter, 16 of the unit."""
    return int.from_bytes(frame.transfer[:3] + frame.transfer[-3:] + frame.unit.to_bytes(2, "big"), "big")


def _error_of(request: ucx.UCXRequest) -> str | None:
    try:
        request.check_error()
    except ucx.UCXError as error:
        return str(error) or type(error).__name__
    return None
