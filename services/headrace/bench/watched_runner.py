"""A runner that tells what each step computed and, if asked, where its time went."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.bench.arithmetic import StepWork
from headrace.core.errors import HeadraceError
from headrace.engine.logit_row import Logits
from headrace.engine.model import Model
from headrace.engine.model_runner import ModelRunner, Sampling
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.row_kernels import RowKernels
from headrace.engine.runner import Draw, Drawn, Pages, Span
from headrace_kernels.native import Matrix, Program, Timings


class TimedSampler:
    """Another sampler. seconds: that sampling took, of all steps."""

    def __init__(self, sampler: Sampling) -> None:
        self._sampler = sampler
        self.seconds = 0.0

    @property
    def rows(self) -> RowKernels:
        return self._sampler.rows

    def sample(self, logits: Logits, draws: list[Draw]) -> list[Drawn | HeadraceError]:
        began = time.perf_counter()
        try:
            return self._sampler.sample(logits, draws)
        finally:
            self.seconds += time.perf_counter() - began


class TimedModel:
    """Any model. seconds: that it took, of all steps, with what makes tensors of a step and brings logits back."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seconds = 0.0

    def forward(self, spans: Sequence[Span]) -> None:
        began = time.perf_counter()
        self._model.forward(spans)
        self.seconds += time.perf_counter() - began

    def logits(self, rows: Sequence[int]) -> Logits:
        began = time.perf_counter()
        logits = self._model.logits(rows)
        self.seconds += time.perf_counter() - began
        return logits


class WatchedRunner(ModelRunner):
    """programs: the native ones, none if torch computes."""

    def __init__(self, model: Model, pages: Pages, sampler: Sampling) -> None:
        self.programs: tuple[Program, ...] = model.programs if isinstance(model, NativeDecoder) else ()
        self._torch = None if self.programs else TimedModel(model)
        self._sampling = TimedSampler(sampler)
        self._steps: list[StepWork] = []
        super().__init__(self._torch or model, pages, self._sampling)

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        work = tuple((span.start, span.count) for span in spans)
        self._steps.append(StepWork(work, sum(span.draw is not None for span in spans)))
        return super().run(spans)

    @property
    def matrices(self) -> list[Matrix]:
        """Those of the programs, the head's last."""
        return [matrix for program in self.programs for matrix in program.matrices()]

    def take_steps(self) -> list[StepWork]:
        """What was run since the last call."""
        taken, self._steps = self._steps, []
        return taken

    @contextmanager
    def clocks(self) -> Iterator[dict[str, float]]:
        """Seconds by what they went to, filled in at the end. Within, native operations run one by one."""
        timings, sampled = Timings(), self._sampling.seconds
        modelled = self._torch.seconds if self._torch else 0.0
        spent: dict[str, float] = {}
        for program in self.programs:
            program.timings = timings
        try:
            yield spent
        finally:
            for program in self.programs:
                program.timings = None
        spent |= {"torch": self._torch.seconds - modelled} if self._torch else timings.seconds
        spent["sampling"] = self._sampling.seconds - sampled
