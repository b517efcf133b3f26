"""The report of `headrace bench engine`: rows of figures, as JSON and as tables for people.

Owns the arithmetic from times to fractions of the ceilings. It measures nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench.arithmetic import Shape, operations, traffic
from headrace.bench.ceilings import Ceilings
from headrace.bench.drive import Timed
from headrace.bench.machine import Machine

_MS, _MB, _G = 1e3, 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of step. work: "prefill" or "decode". batch: sequences. context: tokens before each answer, or the
    prompt's length."""

    work: str
    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one case, those of a step on average. tokens: that a step computes. bytes: by what moves them.

    ms: of a step. spent_ms: where they go; measured in steps whose operations run one by one, which take
    `detailed_ms`. of_bandwidth, of_products: of the machine's ceilings. bound: the ceiling that is nearer.
    """

    work: str
    batch: int
    context: int
    steps: int
    tokens: float
    ms: float
    tokens_per_s: float
    bytes: Mapping[str, float]
    operations: float
    of_bandwidth: float
    of_products: float
    bound: str
    spent_ms: Mapping[str, float]
    detailed_ms: float

    @property
    def name(self) -> str:
        """For people: the prompt's length and the steps it took, or the streams and what stands before each."""
        if self.work == "decode":
            return f"decode {self.batch} x {self.context}"
        return f"prefill {self.context}" + (f" in {self.steps}" if self.steps > 1 else "")


@dataclass(frozen=True, slots=True)
class Limits:
    """What rows are held against: bytes and operations of products that the machine does in a second."""

    bandwidth: float
    products: float


@dataclass(frozen=True, slots=True)
class Report:
    """formats: of the matrices. dtype: of keys and values."""

    model: str
    kernels: str
    dtype: str
    formats: Sequence[str]
    threads: int
    machine: Machine
    ceilings: Ceilings
    limits: Limits
    rows: Sequence[Row]


def row_of(case: Case, timed: Timed, shape: Shape, limits: Limits) -> Row:
    count, seconds = len(timed.steps), sum(timed.seconds)
    moved = [traffic(shape, step) for step in timed.steps]
    done = sum(operations(shape, step) for step in timed.steps)
    of_bandwidth = sum(each.total for each in moved) / seconds / limits.bandwidth
    of_products = done / seconds / limits.products
    parts = ("weights", "kv_read", "kv_written", "logits", "total")
    tokens = sum(step.tokens for step in timed.steps)
    return Row(
        work=case.work,
        batch=case.batch,
        context=case.context,
        steps=count,
        tokens=tokens / count,
        ms=seconds / count * _MS,
        tokens_per_s=tokens / seconds,
        bytes={part: sum(getattr(each, part) for each in moved) / count for part in parts},
        operations=done / count,
        of_bandwidth=of_bandwidth,
        of_products=of_products,
        bound="memory" if of_bandwidth >= of_products else "products",
        spent_ms=spent(timed),
        detailed_ms=timed.detailed_s * _MS,
    )


def spent(timed: Timed) -> dict[str, float]:
    """Milliseconds of a detailed step by what they went to, those that no clock saw as Python's, the most first."""
    known = {name: seconds * _MS for name, seconds in timed.spent.items() if seconds > 0}
    known["python"] = max(0.0, timed.detailed_s * _MS - sum(known.values()))
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def as_json(report: Report) -> dict[str, object]:
    return asdict(report)


def from_json(data: Mapping[str, Any]) -> Report:
    """The inverse of `as_json`."""
    parts = {
        "machine": Machine(**{**data["machine"], "instructions": tuple(data["machine"]["instructions"])}),
        "ceilings": Ceilings(**data["ceilings"]),
        "limits": Limits(**data["limits"]),
        "rows": [Row(**row) for row in data["rows"]],
    }
    return Report(**{**data, **parts})


def print_report(report: Report, console: Console) -> None:
    for line in head(report):
        console.print(line, highlight=False)
    for header, rows in (figures(report), shares(report)):
        table = Table(*header, box=None, pad_edge=False, collapse_padding=True)
        for column in table.columns[1:]:
            column.justify = "right"
        for column in table.columns:
            column.no_wrap = True
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)


def shown(number: float) -> str:
    """With three digits, or all before the point."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def head(report: Report) -> list[str]:
    """The model, the machine and its ceilings, a sentence each."""
    ceilings = report.ceilings
    products = ", ".join(f"{name} {rate / _G:.0f}" for name, rate in ceilings.products.items())
    return [
        f"{report.model}: weights {', '.join(report.formats)}, KV {report.dtype}, {report.kernels} kernels,"
        f" {report.threads} threads",
        f"Machine: {report.machine.words}; load {report.machine.load:.1f}.",
        f"Memory: read {ceilings.read / _G:.1f} GB/s, copied {ceilings.copy / _G:.1f} GB/s; fractions are of"
        f" {report.limits.bandwidth / _G:.1f}.",
        f"Products, 10^9 operations/s: {products}; fractions are of {report.limits.products / _G:.0f}.",
    ]


Cells = tuple[tuple[str, ...], list[tuple[str, ...]]]


def figures(report: Report) -> Cells:
    """Header and rows: what a step takes, and how near it is to the ceilings."""
    header = ("a step of", "ms", "tokens/s", "MB", "GFLOP", "memory", "products", "nearer")
    return header, [
        (
            row.name,
            shown(row.ms),
            f"{row.tokens_per_s:.0f}",
            shown(row.bytes["total"] / _MB),
            shown(row.operations / _G),
            f"{row.of_bandwidth:.2f}",
            f"{row.of_products:.2f}",
            row.bound,
        )
        for row in report.rows
    ]


def shares(report: Report) -> Cells:
    """Header and rows: where a detailed step's milliseconds go, in the order of the first row."""
    names = list(dict.fromkeys(name for row in report.rows for name in row.spent_ms))
    return ("ms in", "all", *names), [
        (row.name, shown(row.detailed_ms), *(shown(row.spent_ms.get(name, 0.0)) for name in names))
        for row in report.rows
    ]
