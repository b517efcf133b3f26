"""UcxListener: where peers come in to a UCX worker, at one address of this host; and the endpoints made for them.

UCX is called directly, by ctypes: the binding's listener takes no address and would listen on every interface. The
layouts are those of UCX's public C interface (ucp.h, ucp_def.h), which keeps them for all of version 1.
"""

import ctypes
import ipaddress
import socket
import struct

import structlog

from headrace.core.errors import StartupError
from headrace.transfer.data_address import ANY_PORT

_log = structlog.get_logger()
_ADDRESS_STORAGE_BYTES = 128
_FORCE = 1
_FLAGS_GIVEN = 1 << 4
# Fields of parameters that are set.
_LISTENER_SOCKADDR, _LISTENER_REQUEST_HANDLER = 1 << 0, 1 << 2
_ENDPOINT_ERROR_MODE, _ENDPOINT_ERROR_HANDLER, _ENDPOINT_FLAGS, _ENDPOINT_REQUEST = 1 << 1, 1 << 2, 1 << 5, 1 << 6
_PEER_ERRORS = 1
_NO_LOOPBACK = 1 << 1
# Pointers from here on are error codes.
_FIRST_ERROR = (1 << 64) - 100

_Status = ctypes.c_int8
_OnRequest = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_OnError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, _Status)


class _SockAddr(ctypes.Structure):
    _fields_ = (("addr", ctypes.c_void_p), ("addrlen", ctypes.c_uint32))


class _Handler(ctypes.Structure):
    _fields_ = (("cb", ctypes.c_void_p), ("arg", ctypes.c_void_p))


class _ListenerParams(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("sockaddr", _SockAddr),
        ("accept_handler", _Handler),
        ("conn_handler", _Handler),
    )


class _ListenerAttr(ctypes.Structure):
    _fields_ = (("field_mask", ctypes.c_uint64), ("sockaddr", ctypes.c_ubyte * _ADDRESS_STORAGE_BYTES))


class _EndpointParams(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("err_mode", ctypes.c_int),
        ("err_handler", _Handler),
        ("user_data", ctypes.c_void_p),
        ("flags", ctypes.c_uint),
        ("sockaddr", _SockAddr),
        ("conn_request", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("local_sockaddr", _SockAddr),
    )


class _RequestParams(ctypes.Structure):
    _fields_ = (
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", ctypes.c_void_p),
        ("cb", ctypes.c_void_p),
        ("datatype", ctypes.c_uint64),
        ("user_data", ctypes.c_void_p),
        ("reply_buffer", ctypes.c_void_p),
        ("memory_type", ctypes.c_int),
        ("recv_info", ctypes.c_void_p),
        ("memh", ctypes.c_void_p),
    )


class UcxListener:
    """Listens until the process ends: UCX crashes if a listener is freed beside a half open connection.

    worker: the handle of a worker whose progress is made on the caller's thread, and must outlive this. host: numeric.
    ports: where it may listen, the first that is free. error_handling: of the endpoints. Raises StartupError.
    """

    def __init__(self, worker: int, host: str, ports: range = ANY_PORT, *, error_handling: bool) -> None:
        self._ucp = _load_ucp()
        self._worker = worker
        self._error_handling = error_handling
        self._endpoints: set[int] = set()
        self._dead: set[int] = set()
        # UCX keeps their addresses.
        self._on_request, self._on_error = _OnRequest(self._accept), _OnError(self._lose)
        self._listener = ctypes.c_void_p()
        for port in ports or range(1):
            status = self._listen(host, port)
            if status == 0:
                break
        else:
            raise StartupError(
                f"The ucx link cannot listen on {host} ({_meaning(status)}).",
                remedy="Give --host or --advertise-host an address of this host.",
            )
        self.port = self._query_port()

    def hang_up(self) -> None:
        """On all who came in: what is arriving from them fails at the next progress. With error handling only."""
        for endpoint in self._endpoints:
            self._close(endpoint)
        self._endpoints.clear()
        self._dead.clear()

    def forget_dead(self) -> None:
        """Let go of peers that died or left."""
        for endpoint in self._dead & self._endpoints:
            self._close(endpoint)
        self._endpoints -= self._dead
        self._dead.clear()

    def _listen(self, host: str, port: int) -> int:
        address = _sockaddr(host, port)
        params = _ListenerParams(
            field_mask=_LISTENER_SOCKADDR | _LISTENER_REQUEST_HANDLER,
            sockaddr=_SockAddr(ctypes.cast(address, ctypes.c_void_p), len(address)),
            conn_handler=_Handler(ctypes.cast(self._on_request, ctypes.c_void_p)),
        )
        return int(self._ucp.ucp_listener_create(self._worker, ctypes.byref(params), ctypes.byref(self._listener)))

    def _query_port(self) -> int:
        attributes = _ListenerAttr(field_mask=1)
        status = self._ucp.ucp_listener_query(self._listener, ctypes.byref(attributes))
        assert status == 0, _meaning(status)
        return int.from_bytes(bytes(attributes.sockaddr)[2:4], "big")

    def _accept(self, request: int, _: int | None) -> None:
        """Called by UCX inside progress."""
        params = _EndpointParams(
            field_mask=_ENDPOINT_FLAGS | _ENDPOINT_REQUEST,
            flags=_NO_LOOPBACK,
            conn_request=request,
        )
        if self._error_handling:
            params.field_mask |= _ENDPOINT_ERROR_MODE | _ENDPOINT_ERROR_HANDLER
            params.err_mode = _PEER_ERRORS
            params.err_handler = _Handler(ctypes.cast(self._on_error, ctypes.c_void_p))
        endpoint = ctypes.c_void_p()
        status = self._ucp.ucp_ep_create(self._worker, ctypes.byref(params), ctypes.byref(endpoint))
        if status or endpoint.value is None:
            _log.warning("ucx.connection_refused", error=_meaning(status))
        else:
            self._endpoints.add(endpoint.value)

    def _lose(self, _: int | None, endpoint: int, status: int) -> None:
        """Called by UCX inside progress. Its endpoint may not be closed here."""
        self._dead.add(endpoint)

    def _close(self, endpoint: int) -> None:
        """By force: what is under way fails. Never twice."""
        params = _RequestParams(op_attr_mask=_FLAGS_GIVEN, flags=_FORCE)
        request = self._ucp.ucp_ep_close_nbx(endpoint, ctypes.byref(params))
        if request is not None and request < _FIRST_ERROR:
            self._ucp.ucp_request_free(request)


def _load_ucp() -> ctypes.CDLL:
    """The library that the binding has loaded."""
    ucp = ctypes.CDLL("libucp.so.0")
    handle, reference = ctypes.c_void_p, ctypes.c_void_p
    for name in ("ucp_listener_create", "ucp_ep_create"):
        function = getattr(ucp, name)
        function.restype, function.argtypes = _Status, (handle, reference, reference)
    ucp.ucp_listener_query.restype, ucp.ucp_listener_query.argtypes = _Status, (handle, reference)
    ucp.ucp_ep_close_nbx.restype, ucp.ucp_ep_close_nbx.argtypes = ctypes.c_void_p, (handle, reference)
    ucp.ucp_request_free.restype, ucp.ucp_request_free.argtypes = None, (handle,)
    return ucp


def _sockaddr(host: str, port: int) -> ctypes.Array[ctypes.c_char]:
    """A sockaddr_in or sockaddr_in6."""
    family, zeros = (socket.AF_INET6, 4) if ":" in host else (socket.AF_INET, 8)
    before = bytes(4) if family is socket.AF_INET6 else b""
    packed = struct.pack("=H", family) + port.to_bytes(2, "big") + before
    packed += ipaddress.ip_address(host).packed + bytes(zeros)
    return ctypes.create_string_buffer(packed, len(packed))


def _meaning(status: int) -> str:
    string = ctypes.CDLL("libucs.so.0").ucs_status_string
    string.restype, string.argtypes = ctypes.c_char_p, (_Status,)
    return bytes(string(status)).decode()
