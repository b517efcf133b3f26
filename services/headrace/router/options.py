"""What a router may be told. Values only."""

from dataclasses import dataclass, field

from headrace.router.attachments import Patience
from headrace.router.policy import Policy


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """name: this router's, as workers see it. worker_token: the fleet's, empty where none is set.

    queue_limit: requests that may wait for a route. grace_s: how long one waits while no worker could serve it.
    comeback_s: the same once it has lost its worker, which may be on its way back; longer than a lease, after which
    the fleet is one without that worker. refuse_s: how long prompts on which workers died are refused.
    grant_s: how long a decode worker may take to answer a submit. drain_s: how long closing a request waits for its
    workers to let go of its pages. move_s: what a running request that leaves a worker with its pages may take to go on
    elsewhere; then it goes without them. relief_s: between two requests that leave a crowded worker.
    history: explanations kept. metrics_s: for each worker's exposition.
    """

    name: str = "router"
    worker_token: str = ""
    policy: Policy = field(default_factory=Policy)
    patience: Patience = field(default_factory=Patience)
    queue_limit: int = 256
    grace_s: float = 3.0
    comeback_s: float = 15.0
    refuse_s: float = 30.0
    grant_s: float = 10.0
    drain_s: float = 2.0
    move_s: float = 5.0
    relief_s: float = 0.25
    history: int = 1000
    metrics_s: float = 2.0
