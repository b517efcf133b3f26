"""Whether processes fit on machines, and if not, why: a pure function and its sentence.

It says what can never be had. That something is taken just now is for whoever holds the machines to find out.
"""

from collections.abc import Sequence

from headrace.placement.processes import Bundle, ProcessSpec


def shortfall(specs: Sequence[ProcessSpec], machines: Sequence[Bundle]) -> str:
    """What these specs lack on these machines, as a sentence; "" if nothing. A spec's bundles share one machine."""
    needs = {spec.name: together(spec.bundles) for spec in specs}
    for name, need in needs.items():
        if not any(need.cpus <= machine.cpus and need.gpus <= machine.gpus for machine in machines):
            return f"{name} needs {said(need)} on one machine, and {_largest(machines)}."
    need, there = together(list(needs.values())), together(machines)
    if need.cpus > there.cpus or need.gpus > there.gpus:
        return f"{len(specs)} workers need {said(need)} in all, and there are {said(there)}."
    return ""


def together(bundles: Sequence[Bundle]) -> Bundle:
    return Bundle(sum(bundle.cpus for bundle in bundles), sum(bundle.gpus for bundle in bundles))


def said(bundle: Bundle) -> str:
    """As people say it: "2 CPUs and 1 GPU"."""
    parts = [_count(bundle.cpus, "CPU")] + ([_count(bundle.gpus, "GPU")] if bundle.gpus else [])
    return " and ".join(parts)


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _largest(machines: Sequence[Bundle]) -> str:
    if not machines:
        return "there is no machine"
    most_cpus, most_gpus = max(machine.cpus for machine in machines), max(machine.gpus for machine in machines)
    return f"no machine has more than {_count(most_cpus, 'CPU')} and {_count(most_gpus, 'GPU')}"
