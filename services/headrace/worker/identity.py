"""Identity: who a worker is, and what it tells the fleet about itself."""

import os
from dataclasses import dataclass

from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.engine.engine import EngineInfo
from headrace.rpc.contracts import OLDEST_PROTOCOL, PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation. model: the served name. link: the name of the carrier's link."""

    ref: WorkerRef
    role: Role
    model: str
    link: str

    def info(self, engine: EngineInfo, address: str, data_address: str) -> WorkerInfo:
        """What stands in the lease and in every welcome. address: `host:port` of the gRPC service."""
        return WorkerInfo(
            ref=self.ref,
            role=self.role,
            address=address,
            model=self.model,
            model_digest=engine.model_digest,
            layout=engine.layout,
            max_model_len=engine.max_model_len,
            num_blocks=engine.num_blocks,
            max_jobs=engine.max_jobs,
            link=self.link,
            data_address=data_address,
            protocol=PROTOCOL_VERSION,
            pid=os.getpid(),
            weights=engine.weights,
            tensor_parallel=engine.tensor_parallel,
            recipe=engine.recipe,
            oldest_protocol=OLDEST_PROTOCOL,
        )
