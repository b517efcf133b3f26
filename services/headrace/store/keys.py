"""The names of everything Headrace keeps in Redis, in one place. Operators read them; they are documented here.

`headrace:{fleet}:workers`                        set: names of workers that may hold a lease
`headrace:{fleet}:lease:{worker}`                 hash: incarnation, order, info; TTL = the lease's
`headrace:{fleet}:lease-events`                   capped stream: a lease was taken, changed or given back
`headrace:{fleet}:prefix:{worker}:{incarnation}`  hash: sequence, digest, one 16-byte field per held block;
                                                  TTL = the lease's
`headrace:{fleet}:prefix-holders`                 set: `{worker}:{incarnation}` that may have such a key
`headrace:{fleet}:prefix-ended:{worker}:{incarnation}`  string: this incarnation's entry was dropped for good
`headrace:{fleet}:prefix-updates`                 capped stream: index updates, for the routers' replicas
`headrace:{fleet}:retries`                        string: retries that no router has in hand
`headrace:{fleet}:refused`                        sorted set: fingerprints of prompts that killed workers, by the
                                                  milliseconds since the epoch until which they are refused
`headrace:{fleet}:exchange:{router}`              hash: a router's last exchange; TTL = an hour

Scripts reach entries through the names in `workers` and `prefix-holders`: one Redis (or a primary with replicas), not
a Redis Cluster that spreads keys over nodes.
"""

from headrace.core.fleet import WorkerRef


def key(fleet: str, *parts: str) -> str:
    """One key of a fleet. Fleets of different names share a Redis without meeting."""
    return ":".join(("headrace", fleet, *parts))


def holder(ref: WorkerRef) -> str:
    """A ref as the last part of a key. A worker's name may contain colons, an incarnation never does."""
    assert ":" not in ref.incarnation, "an incarnation is a token without colons"
    return f"{ref.worker}:{ref.incarnation}"


def ref_of(holder: str) -> WorkerRef:
    """The inverse of `holder`."""
    worker, _, incarnation = holder.rpartition(":")
    return WorkerRef(worker, incarnation)
