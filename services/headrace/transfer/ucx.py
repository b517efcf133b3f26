"""UcxLink: frames over UCX tag messages, between processes and hosts. The only importer of the UCX binding.

Uses the binding's low-level calls on the caller's thread, without asyncio or a progress thread. Endpoints have peer
error handling, so a dead or closed peer ends what is under way; rendezvous is forced, so a send completes only when it
was received. UCX cannot cancel a receive from Python: a withdrawn one is completed by a message to oneself.
"""

import ctypes
import os
import time
from dataclasses import dataclass

import structlog
import ucxx._lib.libucxx as ucx
import xxhash
from ucxx._lib.arr import Array

from headrace.core.errors import StartupError
from headrace.transfer.data_address import ANY_PORT, DataAddress, interface_of
from headrace.transfer.link import SENT_TWICE, FrameId, Receipt, ReceiptState
from headrace.transfer.readable import wait_readable
from headrace.transfer.tcp_patience import patience_of_new_listeners
from headrace.transfer.ucx_listener import UcxListener
from headrace.transfer.ucx_settings import choose_lanes, ucx_settings

_log = structlog.get_logger()
_MARKER_BYTES = 16
_CLOSE_S = 0.2
_HANG_UP_S = 0.05
# For setenv: a value that is there stays.
_KEEP = 0


class _Peer:
    """An endpoint that we opened, until it is dead: lost, closed by the peer, or hung up by us."""

    def __init__(self, endpoint: ucx.UCXEndpoint, nonce: bytes) -> None:
        self.nonce = nonce
        self.dead = False
        self._endpoint = endpoint
        endpoint.set_close_callback(self._mark_dead)

    def send(self, buffer: memoryview, tag: int) -> ucx.UCXRequest:
        return self._endpoint.tag_send(Array(buffer), ucx.UCXXTag(tag))

    def hang_up(self) -> None:
        """Force it closed: what is under way on it fails at the next progress. Returns at once, even if the peer is
        frozen, on lanes with error handling only. A second close of one endpoint would crash: it is never made."""
        if not self.dead:
            self.dead = True
            try:
                self._endpoint.close_blocking(0, 1)
            except ucx.UCXError as error:
                _log.warning("ucx.not_closed", error=str(error))

    def forget(self) -> None:
        """Let go of a dead endpoint. It and its callback hold each other, and UCX must not call a collected object."""
        self._endpoint.remove_close_callback()

    def _mark_dead(self) -> None:
        self.dead = True


@dataclass(slots=True, eq=False)
class _Operation:
    """One UCX request with all that must outlive it. receipt: None for a message to or from ourselves.

    peer, frame: of a send to another link. withdrawing: our own message was sent into this receive.
    """

    request: ucx.UCXRequest
    buffer: memoryview
    tag: int
    receipt: Receipt | None = None
    peer: _Peer | None = None
    frame: FrameId | None = None
    withdrawing: bool = False


class UcxLink:
    """A UCX context and worker, with a listener on `host`, a numeric address. ports: where it may listen.

    tls: the transports UCX may use. TCP alone keeps to the interface that has `host`, so peers must be reachable from
    there. With shared memory among them endpoints have no error handling: a killed sender leaves its receives pending
    and a frozen receiver keeps its sends, until the link is parked. A sender killed inside a write to the queue that
    the link's senders share leaves that blocked, and the link deaf until it is made anew. Posted buffers are at least
    16 bytes.
    """

    def __init__(self, host: str, tls: str, ports: range = ANY_PORT) -> None:
        lanes = choose_lanes(tls)
        self._error_handling = lanes.error_handling
        self._operations: list[_Operation] = []
        self._dialed: dict[str, _Peer] = {}
        self._settled_early = False
        # A secret of this life: a frame that begins with it came from ourselves, to complete a withdrawn receive.
        self._marker = memoryview(os.urandom(_MARKER_BYTES))
        settings = ucx_settings(lanes, interface_of(host), ports)
        with patience_of_new_listeners():
            self._start(settings)
            self._listener = UcxListener(self._worker.handle, host, ports, error_handling=lanes.error_handling)
        self._event_fd = self._worker.epoll_file_descriptor
        self._own = DataAddress.at(host, self._listener.port)
        self._door = self._open_door()

    def _start(self, settings: dict[str, str]) -> None:
        # Of itself the binding writes to standard output when a peer dies, which is ours to say. It looks when a
        # context is made.
        ctypes.CDLL(None).setenv(b"UCXX_LOG_LEVEL", b"FATAL", _KEEP)
        try:
            self._context = ucx.UCXContext(settings, (ucx.Feature.TAG, ucx.Feature.WAKEUP))
            self._worker = ucx.UCXWorker(self._context, False, False)
            self._worker.init_blocking_progress_mode()
            own = ucx.UCXAddress.create_from_worker(self._worker)
            self._self_endpoint = ucx.UCXEndpoint.create_from_worker_address(self._worker, own, False)
        except ucx.UCXError as error:
            raise StartupError(
                f"UCX did not start with the transports {settings['TLS']!r} ({error}).",
                remedy="Choose transports that this host has, or --link tcp.",
            ) from error

    @property
    def address(self) -> str:
        return str(self._own)

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        buffer[:_MARKER_BYTES] = bytes(_MARKER_BYTES)
        self._receive(_tag(self._own.nonce, frame), buffer, receipt)
        return receipt

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        receipt = Receipt(self._withdraw)
        try:
            peer = self._dial(address)
            if self._is_sending(peer, frame):
                return self._refused(receipt, SENT_TWICE)
            # A frame of no bytes is a knock at the peer's door.
            tag = _tag(peer.nonce, frame if buffer else None)
            buffer = buffer or _nothing()
            request = peer.send(buffer, tag)
        except (ucx.UCXError, ValueError) as error:
            return self._refused(receipt, f"{address} cannot be reached ({error})")
        self._operations.append(_Operation(request, buffer, tag, receipt, peer, frame))
        return receipt

    def _is_sending(self, peer: _Peer, frame: FrameId) -> bool:
        """By whatever endpoint: one that was hung up may still have it."""
        return any(
            one.frame == frame and one.peer is not None and one.peer.nonce == peer.nonce for one in self._operations
        )

    def _refused(self, receipt: Receipt, reason: str) -> Receipt:
        receipt.settle(ReceiptState.FAILED, reason)
        self._settled_early = True
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        # One call until nothing is left to do, and not many small ones: each would have to win the interpreter's lock
        # back from busy threads. The transfers' windows bound how much there can be.
        self._worker.progress()
        settled, self._settled_early = self._settle() or self._settled_early, False
        # arm() refuses if something came in since; the next call sees it.
        if not settled and self._worker.arm():
            wait_readable((self._event_fd, wake_fd), timeout_s)
            self._worker.progress()
            self._settle()
        self._forget_dead()

    def close(self) -> None:
        for operation in list(self._operations):
            if operation.receipt is not None:
                operation.receipt.withdraw()
        self._settle_within(_CLOSE_S)
        if self._error_handling:
            self._hang_up_on_all()
            self._settle_within(_CLOSE_S)
        self._park()

    def _hang_up_on_all(self) -> None:
        """Peers hear of it by the progress made here, and so do those who were only just connecting."""
        until = time.monotonic() + _HANG_UP_S
        while (left_s := until - time.monotonic()) > 0:
            for peer in self._dialed.values():
                peer.hang_up()
            self._listener.hang_up()
            self._worker.progress()
            self._settle()
            self._forget_dead()
            if self._worker.arm():
                wait_readable((self._event_fd,), left_s)

    def _settle_within(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._operations and time.monotonic() < until:
            self._worker.progress()
            self._settle()

    def _dial(self, address: str) -> _Peer:
        """Raises UCXError or ValueError."""
        self._forget_dead()
        peer = self._dialed.get(address)
        if peer is None:
            called = DataAddress.parse(address)
            endpoint = ucx.UCXEndpoint.create(self._worker, called.host, called.port, self._error_handling)
            peer = self._dialed[address] = _Peer(endpoint, called.nonce)
        return peer

    def _forget_dead(self) -> None:
        self._listener.forget_dead()
        dead = [peer for peer in self._dialed.values() if peer.dead]
        if dead:
            self._dialed = {address: peer for address, peer in self._dialed.items() if not peer.dead}
            for peer in dead:
                peer.forget()

    def _open_door(self) -> ucx.UCXRequest:
        """A receive of this link's own, for those who knock to see whether it can be reached."""
        self._knock = _nothing()
        return self._worker.tag_recv(Array(self._knock), ucx.UCXXTag(_tag(self._own.nonce, None)))

    def _receive(self, tag: int, buffer: memoryview, receipt: Receipt | None) -> None:
        request = self._worker.tag_recv(Array(buffer), ucx.UCXXTag(tag))
        self._operations.append(_Operation(request, buffer, tag, receipt))

    def _withdraw(self, receipt: Receipt) -> None:
        for operation in list(self._operations):
            if operation.receipt is not receipt:
                continue
            if operation.peer is not None and self._error_handling:
                operation.peer.hang_up()
            elif operation.peer is None and not operation.withdrawing:
                self._displace(operation)

    def _displace(self, operation: _Operation) -> None:
        """Send our own message into a receive."""
        try:
            request = self._self_endpoint.tag_send(Array(self._marker), ucx.UCXXTag(operation.tag))
        except ucx.UCXError as error:
            _log.warning("ucx.not_withdrawn", error=str(error))
            return
        operation.withdrawing = True
        self._operations.append(_Operation(request, self._marker, operation.tag))

    def _settle(self) -> bool:
        """Settle what UCX completed. True if anything was."""
        if self._door.completed:
            self._door = self._open_door()
        done = [operation for operation in self._operations if operation.request.completed]
        if not done:
            return False
        self._operations = [operation for operation in self._operations if not operation.request.completed]
        for operation in done:
            self._finish(operation)
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
        """Never progress again and never free: the reference is for the life of the process.

        A peer may still use memory of pending operations, and closing a UCX worker fences nothing and may spin beside
        a frozen peer. Without any, freeing the listener crashes if a connection to it was accepted but not yet heard
        from (UCX 1.21 hands it on to the freed listener on its own thread).
        """
        if self._operations:
            _log.warning("ucx.parked", address=self.address, operations=len(self._operations))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def _tag(nonce: bytes, frame: FrameId | None) -> int:
    """Of a frame to the link with this nonce, or of a knock at its door: 64 bits that no other life of it expects."""
    name = frame.transfer + frame.unit.to_bytes(2, "big") if frame is not None else b""
    return xxhash.xxh3_64_intdigest(nonce + name)


def _nothing() -> memoryview:
    """What is sent for a frame of no bytes."""
    return memoryview(bytearray(_MARKER_BYTES))


def _error_of(request: ucx.UCXRequest) -> str | None:
    try:
        request.check_error()
    except ucx.UCXError as error:
        return str(error) or type(error).__name__
    return None
