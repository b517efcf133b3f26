"""Codec of workers, their load, and the fleet's status."""

from headrace.core.fleet import FleetStatus, Load, RefusedWorker, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.layout import KvLayout
from headrace.rpc.codec.values import EnumCodec, part, refusing
from headrace.rpc.v1 import fleet_pb2 as pb

ROLE = EnumCodec(Role, pb.Role, "ROLE_")


@refusing("The worker's name")
def encode_ref(ref: WorkerRef) -> pb.WorkerRef:
    return pb.WorkerRef(worker=ref.worker, incarnation=ref.incarnation)


def decode_ref(message: pb.WorkerRef) -> WorkerRef:
    return WorkerRef(message.worker, message.incarnation)


@refusing("The layout")
def encode_layout(layout: KvLayout) -> pb.KvLayout:
    return pb.KvLayout(
        layers=layout.layers,
        kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        block_tokens=layout.block_tokens,
        dtype=layout.dtype,
        scale_bytes=layout.scale_bytes,
    )


def decode_layout(message: pb.KvLayout) -> KvLayout:
    return KvLayout(
        message.layers,
        message.kv_heads,
        message.head_dim,
        message.block_tokens,
        message.dtype,
        message.scale_bytes,
    )


@refusing("The worker")
def encode_info(info: WorkerInfo) -> pb.WorkerInfo:
    return pb.WorkerInfo(
        ref=encode_ref(info.ref),
        role=ROLE.encode(info.role),
        address=info.address,
        model=info.model,
        model_digest=info.model_digest,
        layout=encode_layout(info.layout),
        max_model_len=info.max_model_len,
        num_blocks=info.num_blocks,
        max_jobs=info.max_jobs,
        link=info.link,
        data_address=info.data_address,
        protocol=info.protocol,
        pid=info.pid,
        weights=info.weights,
        tensor_parallel=info.tensor_parallel,
        recipe=info.recipe,
        oldest_protocol=info.oldest_protocol,
    )


def decode_info(message: pb.WorkerInfo) -> WorkerInfo:
    part(message, "ref")
    part(message, "layout")
    return WorkerInfo(
        ref=decode_ref(message.ref),
        role=ROLE.decode(message.role),
        address=message.address,
        model=message.model,
        model_digest=message.model_digest,
        layout=decode_layout(message.layout),
        max_model_len=message.max_model_len,
        num_blocks=message.num_blocks,
        max_jobs=message.max_jobs,
        link=message.link,
        data_address=message.data_address,
        protocol=message.protocol,
        pid=message.pid,
        weights=message.weights,
        tensor_parallel=message.tensor_parallel,
        recipe=message.recipe,
        oldest_protocol=message.oldest_protocol,
    )


@refusing("The load")
def encode_load(load: Load) -> pb.Load:
    return pb.Load(
        running=load.running,
        waiting=load.waiting,
        free_blocks=load.free_blocks,
        total_blocks=load.total_blocks,
        cached_blocks=load.cached_blocks,
        credits=load.credits,
        quarantined_slabs=load.quarantined_slabs,
        unready=load.unready,
        prefill_tokens_s=load.prefill_tokens_s,
        transfer_bytes_s=load.transfer_bytes_s,
        crowded=load.crowded,
    )


def decode_load(message: pb.Load) -> Load:
    return Load(
        running=message.running,
        waiting=message.waiting,
        free_blocks=message.free_blocks,
        total_blocks=message.total_blocks,
        cached_blocks=message.cached_blocks,
        credits=message.credits,
        quarantined_slabs=message.quarantined_slabs,
        unready=message.unready,
        prefill_tokens_s=message.prefill_tokens_s,
        transfer_bytes_s=message.transfer_bytes_s,
        crowded=tuple(message.crowded),
    )


def encode_state(state: WorkerState) -> pb.WorkerState:
    return pb.WorkerState(
        info=encode_info(state.info),
        load=encode_load(state.load),
        attached=state.attached,
        draining=state.draining,
    )


def decode_state(message: pb.WorkerState) -> WorkerState:
    part(message, "info")
    return WorkerState(decode_info(message.info), decode_load(message.load), message.attached, message.draining)


@refusing("The status")
def encode_status(status: FleetStatus) -> pb.FleetStatus:
    return pb.FleetStatus(
        ready=status.ready,
        reason=status.reason,
        workers=[encode_state(state) for state in status.workers],
        requests_running=status.requests_running,
        requests_waiting=status.requests_waiting,
        refused=[pb.RefusedWorker(info=encode_info(one.info), reason=one.reason) for one in status.refused],
    )


def decode_status(message: pb.FleetStatus) -> FleetStatus:
    return FleetStatus(
        ready=message.ready,
        reason=message.reason,
        workers=tuple(decode_state(state) for state in message.workers),
        requests_running=message.requests_running,
        requests_waiting=message.requests_waiting,
        refused=tuple(_decode_refused(one) for one in message.refused),
    )


def _decode_refused(message: pb.RefusedWorker) -> RefusedWorker:
    part(message, "info")
    return RefusedWorker(decode_info(message.info), message.reason)
