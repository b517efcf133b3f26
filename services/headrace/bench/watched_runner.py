"""A runner that tells what each step computed and, if asked, where its time went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from headrace.bench.arithmetic import StepWork
from headrace.core.errors import HeadraceError
from headrace.engine.batch import Batch
from headrace.engine.logit_row import Logits
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.ops import PagedKv
from headrace.engine.page_memory import PageMemory
from headrace.engine.runner import Draw, Drawn, Span
from headrace.engine.sample import Sampler
from headrace.engine.torch_runner import Model, TorchRunner
from headrace_kernels.native import Matrix, Program, Timings


class TimedModel:
    """Any model. seconds: that it took, of all steps."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seconds = 0.0

    def forward(self, batch: Batch, kv: PagedKv) -> Tensor:
        began = time.perf_counter()
        states = self._model.forward(batch, kv)
        self.seconds += time.perf_counter() - began
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        began = time.perf_counter()
        logits = self._model.logits(hidden)
        self.seconds += time.perf_counter() - began
        return logits


class WatchedRunner(TorchRunner):
    """programs: the native ones, none if torch computes."""

    def __init__(self, model: Model, pages: PageMemory, kv: PagedKv, sampler: Sampler) -> None:
        self.programs: tuple[Program, ...] = model.programs if isinstance(model, NativeDecoder) else ()
        self._torch = None if self.programs else TimedModel(model)
        self._sampled_s = 0.0
        self._steps: list[StepWork] = []
        super().__init__(self._torch or model, pages, kv, sampler)

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        work = tuple((span.start, span.count) for span in spans)
        self._steps.append(StepWork(work, sum(span.draw is not None for span in spans)))
        return super().run(spans)

    def _sample(self, logits: Logits, draws: list[Draw]) -> list[Drawn | HeadraceError]:
        began = time.perf_counter()
        try:
            return super()._sample(logits, draws)
        finally:
            self._sampled_s += time.perf_counter() - began

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
        timings, sampled = Timings(), self._sampled_s
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
        spent["sampling"] = self._sampled_s - sampled
