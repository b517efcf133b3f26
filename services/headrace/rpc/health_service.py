"""The standard health service, which also says why: a reason beside NOT_SERVING, for who knows to look for it."""

from typing import Any

from grpc_health.v1 import health

# In the trailing metadata of a check's answer, as UTF-8.
REASON_KEY = "headrace-reason-bin"


class ReasonedHealth(health.aio.HealthServicer):  # type: ignore[name-defined, misc]
    """reason: why the server is not ready; "" if it is, or if nobody says."""

    reason = ""

    async def Check(self, request: Any, context: Any) -> Any:
        if self.reason:
            context.set_trailing_metadata(((REASON_KEY, self.reason.encode()),))
        return await super().Check(request, context)
