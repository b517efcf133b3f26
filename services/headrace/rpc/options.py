"""Channel and server options: message sizes, keepalive, reconnecting, retries."""

import json
from dataclasses import dataclass

Options = tuple[tuple[str, int | str], ...]

# A prompt of 100,000 tokens is half a megabyte; its text and a long chat are a few.
_MAX_MESSAGE_BYTES = 64 * 2**20

# Unary calls that change nothing, so that a second try is harmless.
_IDEMPOTENT = {
    "headrace.rpc.v1.Inference": ("Tokenize", "Detokenize", "ListModels"),
    "headrace.rpc.v1.Fleet": ("Status", "Explain", "Metrics"),
    "headrace.rpc.v1.Worker": ("Metrics",),
}
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.5s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A silent peer is given up after at most interval_s + timeout_s; both ends ping."""

    interval_s: float = 1.0
    timeout_s: float = 2.0


def server_options(keepalive: Keepalive) -> Options:
    # Port reuse would let a second process take half the connections of the first, silently.
    return (
        *_common(keepalive),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(keepalive.interval_s / 2)),
    )


def client_options(keepalive: Keepalive) -> Options:
    # Each client has its own connection, so that none inherits the backoff of another's dead worker. A proxy
    # from the environment is for the internet, not for the fleet. The minimum backoff is, in spite of its name,
    # the time that one attempt to connect may take.
    return (
        *_common(keepalive),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", _service_config()),
    )


def _common(keepalive: Keepalive) -> Options:
    # Without grpc.http2.ping_timeout_ms a stopped peer goes unnoticed for most of a minute.
    return (
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _ms(keepalive.interval_s)),
        ("grpc.keepalive_timeout_ms", _ms(keepalive.timeout_s)),
        ("grpc.http2.ping_timeout_ms", _ms(keepalive.timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


def _service_config() -> str:
    names = [{"service": service, "method": method} for service, methods in _IDEMPOTENT.items() for method in methods]
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": _RETRY}]})


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
