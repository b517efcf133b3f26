"""Agent: a worker's end of the chaos socket. It hears orders and hands them to the worker's aim, and tells the news.

Owns the connection and the thread that listens to it. It never dials again: when the harness leaves, everything that
is held goes on and nothing is armed any more.
"""

import contextlib
import queue
import socket
import struct
import threading
from pathlib import Path

import structlog

from headrace.chaos.aim import Aim
from headrace.chaos.messages import (
    LENGTH,
    Advertise,
    Arrived,
    Disarm,
    Hold,
    News,
    Opened,
    Order,
    Release,
    WireFault,
    pack,
    unpack,
)
from headrace.core.errors import StartupError

_log = structlog.get_logger()
_DIAL_S = 5.0
_ADVERTISE_S = 10.0
_JOIN_S = 5.0
# A harness that does not read must not stop a worker for longer.
_SEND_TIMEOUT = struct.pack("ll", 5, 0)


class Agent:
    """Dials when it is made. Raises StartupError if nobody listens at `path`. All methods are for any thread."""

    def __init__(self, path: Path, who: Arrived) -> None:
        self._socket = _dial(path)
        self._sending = threading.Lock()
        self._addresses: queue.SimpleQueue[Advertise] = queue.SimpleQueue()
        self._alone = threading.Event()
        self.aim = Aim(self._tell)
        self._tell(who)
        self._thread = threading.Thread(target=self._listen, name="chaos", daemon=True)
        self._thread.start()

    def advertised(self, address: str) -> str:
        """What the link that is open at `address` is to call itself. Raises StartupError."""
        self._tell(Opened(address))
        # Looked at after the question was asked: whoever leaves now answers it too.
        if self._alone.is_set():
            return address
        try:
            return self._addresses.get(timeout=_ADVERTISE_S).address or address
        except queue.Empty:
            raise StartupError(f"The chaos harness did not say within {_ADVERTISE_S:g} s what {address} is.") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_JOIN_S)
        self._socket.close()

    def _tell(self, news: News) -> None:
        """What a harness that left does not hear is not missed."""
        with contextlib.suppress(OSError), self._sending:
            self._socket.sendall(pack(news))

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as words:
                while (length := words.read(LENGTH.size)) and len(length) == LENGTH.size:
                    self._obey(unpack(words.read(*LENGTH.unpack(length))))
        except (OSError, ValueError) as error:
            _log.warning("chaos.unheard", reason=repr(error))
        self._alone.set()
        self._addresses.put(Advertise(""))
        self.aim.disarm()

    def _obey(self, order: Order | News) -> None:
        if isinstance(order, Hold | WireFault):
            self.aim.arm(order)
        elif isinstance(order, Release):
            self.aim.release()
        elif isinstance(order, Disarm):
            self.aim.disarm()
        elif isinstance(order, Advertise):
            self._addresses.put(order)


def _dial(path: Path) -> socket.socket:
    dialing = socket.socket(socket.AF_UNIX)
    try:
        dialing.settimeout(_DIAL_S)
        dialing.connect(str(path))
        dialing.settimeout(None)
        dialing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
    except OSError as error:
        dialing.close()
        raise StartupError(
            f"No chaos harness listens at {path} ({error}).", remedy="Do without --chaos-socket: it is for experiments."
        ) from error
    return dialing
