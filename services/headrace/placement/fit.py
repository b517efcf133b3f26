"""Whether processes fit on machines, and if not, why: a pure function and its sentence.

It says what can never be had. That something is taken just now is for whoever holds the machines to find out.
"""

from collections.abc import Sequence

from headrace.core.errors import StartupError
from headrace.placement.processes import Bundle, ProcessSpec


def require_fit(specs: Sequence[ProcessSpec], machines: Sequence[Bundle], remedy: str) -> None:
    """Raises StartupError if these specs cannot have what they need of these machines, whatever else runs there."""
    if lacking := shortfall(specs, machines):
        raise StartupError(lacking, remedy=remedy)


def shortfall(specs: Sequence[ProcessSpec], machines: Sequence[Bundle]) -> str:
    """What these specs lack on these machines, as a sentence; "" if nothing. A spec's bundles share one machine."""
    needs = {spec.name: together(spec.bundles) for spec in specs}
    largest = Bundle(max((each.cpus for each in machines), default=0), max((each.gpus for each in machines), default=0))
    for name, need in needs.items():
        if not any(_holds(machine, need) for machine in machines):
            return f"{name} needs {said(need)} on one machine, and no machine has more than {said(largest, need)}."
    need, there = together(list(needs.values())), together(machines)
    if not _holds(there, need):
        return f"{len(specs)} workers need {said(need)}, and there are {said(there, need)} in all."
    return ""


def together(bundles: Sequence[Bundle]) -> Bundle:
    return Bundle(sum(bundle.cpus for bundle in bundles), sum(bundle.gpus for bundle in bundles))


def said(bundle: Bundle, asked: Bundle | None = None) -> str:
    """As people say it: "2 CPUs and 1 GPU"; of GPUs only where there are any, or where somebody asked for them."""
    with_gpus = (asked or bundle).gpus > 0
    return _count(bundle.cpus, "CPU") + (f" and {_count(bundle.gpus, 'GPU')}" if with_gpus else "")


def _holds(machine: Bundle, need: Bundle) -> bool:
    return need.cpus <= machine.cpus and need.gpus <= machine.gpus


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"
