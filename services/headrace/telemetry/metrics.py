"""Every metric name of Headrace, in one file. vLLM's name where the thing is the same, `headrace_*` where not.

One instance per process, made by `bootstrap` and handed to whoever counts; there is no global registry.
"""

import asyncio
import threading

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Parts of a request that should be too short to matter.
_SHORT_S = (0.0001, 0.0005, 0.001, 0.0025, *_LATENCY_S)


class ProcessMetrics:
    """What the soundness of any process shows in: memory, file descriptors, threads, tasks. All are looked up when
    asked for; those of the operating system bear Prometheus's own names, `process_*`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        threads = Gauge("headrace_process_threads", "Threads of the process.", registry=registry)
        threads.set_function(lambda: float(threading.active_count()))
        self._tasks = Gauge("headrace_process_tasks", "Tasks of the process's event loop.", registry=registry)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the one whose tasks count. A scrape may come on any thread."""
        self._tasks.set_function(lambda: float(len(asyncio.all_tasks(loop))))


class GatewayMetrics:
    """What a gateway without a router counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.process = ProcessMetrics(self.registry)


class WorkerMetrics:
    """What one worker counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add = self.registry
        self.running = Gauge("vllm:num_requests_running", "Jobs in the running batch.", registry=add)
        self.waiting = Gauge("vllm:num_requests_waiting", "Jobs waiting for pages or a slot.", registry=add)
        self.kv_usage = Gauge("vllm:kv_cache_usage_perc", "Referenced KV blocks, 0 to 1.", registry=add)
        self.kv_waste = Gauge(
            "headrace_kv_waste_ratio",
            "Slots of held KV pages beyond their job's last token, 0 to 1.",
            registry=add,
        )
        self.preemptions = Counter(
            "vllm:num_preemptions", "Sequences that lost their pages and were recomputed.", registry=add
        )
        self.stalled = Gauge("headrace_engine_stalled", "1 while the engine has work and makes no step.", registry=add)
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens of jobs begun here.", registry=add)
        self.generated_tokens = Counter("vllm:generation_tokens", "Tokens sampled here.", registry=add)
        self.cache_queries = Counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", registry=add)
        self.cache_hits = Counter("vllm:prefix_cache_hits", "Tokens found there.", registry=add)
        self.free_blocks = Gauge("headrace_kv_blocks_free", "Unreferenced KV blocks.", registry=add)
        self.total_blocks = Gauge("headrace_kv_blocks", "KV blocks in the pool.", registry=add)
        self.jobs = Counter("headrace_jobs", "Jobs ended.", ["kind", "outcome"], registry=add)
        self.live = Gauge(
            "headrace_jobs_live",
            "Jobs that hold something here: a place, pages or a transfer.",
            registry=add,
        )
        self.step_seconds = Histogram(
            "headrace_engine_step_seconds", "Time of one engine step.", buckets=_LATENCY_S, registry=add
        )
        self.pool_checks = Counter(
            "headrace_pool_checks",
            "Recounts of an idle worker's pages that held; one that does not ends it.",
            registry=add,
        )
        self.transfer = TransferMetrics(self.registry)
        self.process = ProcessMetrics(self.registry)

    def exposition(self) -> str:
        return generate_latest(self.registry).decode()


class TransferMetrics:
    """What one worker's transfer thread counts. direction: sent or received."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.bytes = Counter(
            "headrace_kv_transfer_bytes",
            "KV payload bytes that completed (received: that verified).",
            ["direction"],
            registry=registry,
        )
        self.units = Counter(
            "headrace_kv_transfer_units", "Transfer units completed.", ["direction"], registry=registry
        )
        self.transfers = Counter(
            "headrace_kv_transfers", "Transfers closed.", ["direction", "status"], registry=registry
        )
        self.seconds = Histogram(
            "headrace_kv_transfer_seconds",
            "From ticket to close.",
            ["direction"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.refused = Counter("headrace_kv_units_refused", "Units that did not verify.", ["reason"], registry=registry)
        self.slabs = Gauge("headrace_kv_slabs", "Staging slabs.", ["state"], registry=registry)
        self.messages = Counter(
            "headrace_kv_transfer_messages",
            "Frames of transfers that closed: their units and their End.",
            ["direction"],
            registry=registry,
        )
        self.quarantined = Counter(
            "headrace_kv_slabs_quarantined",
            "Slabs set aside because their transfer was given up with a frame under way.",
            registry=registry,
        )
        self.stalls = Counter(
            "headrace_kv_transfer_stalls",
            "Transfers given up: the peer took nothing (silent), or only other frames (short), or what it sent did not"
            " come (overdue).",
            ["reason"],
            registry=registry,
        )
        self.rebuilds = Counter("headrace_kv_link_rebuilds", "Links that broke and were replaced.", registry=registry)
        self.meetings = Counter(
            "headrace_kv_meetings",
            "Calls to peers ahead of a first transfer: answered (met) or not (failed).",
            ["outcome"],
            registry=registry,
        )
        self._show_zeros()
        self._add_overlap(registry)

    def _show_zeros(self) -> None:
        """An alert on the first of a kind needs to have seen none before."""
        for direction in ("sent", "received"):
            self.bytes.labels(direction)
            self.messages.labels(direction)
        for reason in ("silent", "short", "overdue"):
            self.stalls.labels(reason)
        for outcome in ("met", "failed"):
            self.meetings.labels(outcome)

    def _add_overlap(self, registry: CollectorRegistry) -> None:
        self.exposed = Histogram(
            "headrace_kv_transfer_exposed_seconds",
            "Of a complete transfer's time, what somebody waited for it with nothing else left to do.",
            ["direction"],
            buckets=_SHORT_S,
            registry=registry,
        )
        self.overlapped = Histogram(
            "headrace_kv_transfer_overlapped_seconds",
            "Of a complete transfer's time, what was hidden behind computing.",
            ["direction"],
            buckets=_SHORT_S,
            registry=registry,
        )
        self.inflight = Gauge(
            "headrace_kv_transfer_inflight_bytes",
            "Bytes of frames in the hands of the link that their peers have not taken yet.",
            registry=registry,
        )
        for direction in ("sent", "received"):
            self.exposed.labels(direction)
            self.overlapped.labels(direction)


class RequestTimes:
    """What answered requests took where, and each attempt for its grant and its commit."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queue = Histogram(
            "vllm:request_queue_time_seconds",
            "From a prepared prompt to its first route: what a request waits for a worker with room.",
            buckets=_SHORT_S,
            registry=registry,
        )
        self.prefill = Histogram(
            "vllm:request_prefill_time_seconds",
            "From the first route to the first token.",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.decode = Histogram(
            "vllm:request_decode_time_seconds",
            "From the first token to the last.",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.inference = Histogram(
            "vllm:request_inference_time_seconds",
            "From the first route to the last token.",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.grant = Histogram(
            "headrace_grant_wait_seconds",
            "From a route to the decode worker's grant.",
            buckets=_SHORT_S,
            registry=registry,
        )
        self.commit = Histogram(
            "headrace_commit_wait_seconds",
            "From the first token until the decode worker has all pages: the hand-over that a client may notice.",
            buckets=_SHORT_S,
            registry=registry,
        )


class RouterMetrics:
    """What one router counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add = self.registry
        self.ttft = Histogram(
            "vllm:time_to_first_token_seconds",
            "From receipt to first token.",
            buckets=_LATENCY_S,
            registry=add,
        )
        self.itl = Histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens.", buckets=_LATENCY_S, registry=add
        )
        self.e2e = Histogram(
            "vllm:e2e_request_latency_seconds", "From receipt to ending.", buckets=_LATENCY_S, registry=add
        )
        self.endings = Counter("headrace_requests", "Requests ended.", ["outcome"], registry=add)
        self.success = Counter("vllm:request_success", "Requests answered.", ["finished_reason"], registry=add)
        self.cached_tokens = Counter(
            "headrace_cached_tokens", "Prompt tokens served from a prefix cache.", registry=add
        )
        self.queued = Gauge("headrace_router_queue", "Requests waiting for a dispatch credit.", registry=add)
        self.retries = Counter("headrace_attempt_retries", "Attempts begun again.", ["cause"], registry=add)
        self.relocations = Counter(
            "headrace_relocations", "Running requests that went on elsewhere with their pages.", registry=add
        )
        self.pulls = Counter(
            "headrace_kv_pulls", "Prefixes that a worker was to fetch from another's cache.", ["outcome"], registry=add
        )
        self.pulled_tokens = Counter("headrace_kv_pulled_tokens", "Prompt tokens fetched so.", registry=add)
        self.workers = Gauge("headrace_workers", "Attached workers.", ["role"], registry=add)
        self.redis_up = Gauge("headrace_redis_up", "1 while Redis answers, 0 while it is away.", registry=add)
        self.times = RequestTimes(self.registry)
        self.process = ProcessMetrics(self.registry)

    def exposition(self) -> str:
        return generate_latest(self.registry).decode()
