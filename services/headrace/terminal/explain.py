"""`headrace explain ID`: where a request went, what was weighed, how it ended, and where its time went."""

import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.terminal.client import answer, gateway
from headrace.terminal.waterfall import parts, transfers


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    url: str
    api_key: str
    request: str
    as_json: bool


def show(options: ExplainOptions) -> int:
    """Print it. Raises NotFound for a request that is not among the router's last ones."""
    with gateway(options.url, options.api_key) as client:
        told = answer(client.get(f"/v1/requests/{_request_id(options.request)}/explain"))
    if options.as_json:
        print(json.dumps(told, indent=2))
        return 0
    console = Console()
    console.print(
        f"{told['request']}  {told['model']}  {told['outcome']}  {told['prompt_tokens']} prompt tokens, "
        f"{told['actual_cached_tokens']} cached, first token after {_number(told['actual_ttft_ms'])} ms",
        highlight=False,
    )
    for number, route in enumerate(told["routes"], start=1):
        console.print(_attempt(number, route))
        for reason in route["reasons"]:
            console.print(f"  {reason}", highlight=False)
    console.print(_life(told["transitions"]), highlight=False)
    for table in (parts(told["waterfall"]), transfers(told["notes"])):
        if table.row_count:
            console.print(table)
    return 0


def _attempt(number: int, route: dict[str, Any]) -> Table:
    expected = f"{route['cached_tokens']} tokens cached, first token after {_number(route['expected_ttft_ms'])} ms"
    table = Table("worker", "role", "cached", "jobs", "cost", "why", title=f"attempt {number}: expected {expected}")
    table.box, table.pad_edge, table.title_justify = None, False, "left"
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for candidate in route["candidates"]:
        worker = candidate["worker"]
        table.add_row(
            f"{'→' if candidate['chosen'] else ' '} {worker['worker']}@{worker['incarnation'][:8]}",
            candidate["role"],
            str(candidate["cached_tokens"]),
            f"{candidate['running']}+{candidate['waiting']}",
            _number(candidate["score"]),
            candidate["why"],
        )
    return table


def _request_id(said: str) -> str:
    """The id as the router knows it: OpenAI's bodies put what kind of answer it is in front."""
    return said.removeprefix("chatcmpl-").removeprefix("cmpl-")


def _number(value: float | None) -> str:
    """JSON has no infinity: what was never finite comes as null."""
    return "-" if value is None else f"{value:.0f}"


def _life(transitions: list[dict[str, Any]]) -> str:
    if not transitions:
        return ""
    began = transitions[0]["at"]
    steps = [f"{step['after']} +{(step['at'] - began) * 1000:.0f} ms" for step in transitions]
    return " → ".join([transitions[0]["before"], *steps])
