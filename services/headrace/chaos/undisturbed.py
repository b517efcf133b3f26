"""What the requests of the mix are answered when nothing happens: what every other answer is held against."""

import secrets
from collections.abc import Mapping

import httpx

from headrace.chaos.client import Heard, ask
from headrace.chaos.cluster import Cluster
from headrace.chaos.members import MODEL, Kind, of_kind
from headrace.chaos.mix import Ask, mix, salted, with_stop
from headrace.chaos.rest import until_at_rest
from headrace.chaos.verdict import finished
from headrace.core.errors import StartupError

_UNDISTURBED_S = 30.0


async def undisturbed(client: httpx.AsyncClient, cluster: Cluster) -> tuple[tuple[Ask, ...], Mapping[str, Heard]]:
    """The requests, with a stop string that occurs, and what each hears when nothing happens. Raises StartupError."""
    salt = secrets.token_hex(4)
    door = of_kind(cluster.members, Kind.GATEWAY)[0].url

    async def hear(one: Ask) -> Heard:
        heard = await ask(client, door, salted(one, salt), f"{salt}-{secrets.token_hex(4)}", _UNDISTURBED_S)
        if not finished(heard):
            raise StartupError(f"Undisturbed, {one.name} was not answered: {heard.errors or heard.cut or 'late'}.")
        return heard

    asks = {one.name: one for one in mix(MODEL)}
    asks["stop"] = with_stop(asks["stop"], (await hear(asks["stop"])).choices[0].text)
    references = {name: await hear(one) for name, one in asks.items()}
    held, _ = await until_at_rest(client, cluster)
    if held:
        raise StartupError(f"Undisturbed, the cluster does not come to rest: {'; '.join(held)}.")
    return tuple(asks.values()), references
