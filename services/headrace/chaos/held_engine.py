"""HeldEngine: an engine that stands still where it is told to, as one does whose step is frozen.

Owns where in an engine's life each phase lies. It changes nothing of what the engine does or answers.
"""

from headrace.chaos.aim import Aim, HeldJob
from headrace.chaos.messages import Phase
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.pages import PagePort
from headrace.engine.engine import Admission, Engine, EngineInfo, Progress, StepOutput

_PHASE_OF_ADD = {JobKind.DECODE: Phase.BEFORE_GRANT, JobKind.PREFILL: Phase.AFTER_GRANT}
_Reached = tuple[Phase, JobKey, int]


class HeldEngine:
    """Implements Engine over another one. A hold blocks the engine's thread.

    What a step brought is told before the engine stands: a hold within a job's steps begins with the next one.
    """

    def __init__(self, engine: Engine, aim: Aim) -> None:
        self._engine = engine
        self._aim = aim
        self._jobs: dict[JobKey, Job] = {}
        # Where jobs got to in the last step, if somebody waits for that.
        self._reached: tuple[_Reached, ...] = ()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def pages(self) -> PagePort:
        return self._engine.pages

    def add(self, job: Job) -> Admission:
        if job.kind in _PHASE_OF_ADD:
            self._stand(self._aim.take(_PHASE_OF_ADD[job.kind], job.key))
        admission = self._engine.add(job)
        self._jobs[job.key] = job
        if job.ticket is not None:
            self._aim.carries(job.ticket.transfer, job.key)
        return admission

    def activate(self, key: JobKey, first_token: int) -> None:
        self._stand(self._aim.take(Phase.AFTER_COMMIT, key))
        self._engine.activate(key, first_token)

    def hold(self, key: JobKey) -> Progress | None:
        return self._engine.hold(key)

    def remove(self, key: JobKey, verified_tokens: int = 0) -> None:
        self._engine.remove(key, verified_tokens)
        job = self._jobs.pop(key, None)
        if job is not None and job.ticket is not None:
            self._aim.forget(job.ticket.transfer)

    def step(self) -> StepOutput:
        reached, self._reached = self._reached, ()
        for phase, key, count in reached:
            if key in self._jobs:
                self._stand(self._aim.take(phase, key, count))
        output = self._engine.step()
        if self._aim.awaits(Phase.MID_CHUNK):
            self._reached = self._within_prompts(output)
        elif self._aim.awaits(Phase.MID_DECODE):
            self._reached = self._within_answers(output)
        return output

    def check(self) -> None:
        self._engine.check()

    def _stand(self, held: HeldJob | None) -> None:
        if held is not None:
            held.wait()
            self._aim.let_go(held)

    def _within_prompts(self, output: StepOutput) -> tuple[_Reached, ...]:
        """Prefill jobs that have a part of their prompt and not all of it."""
        return tuple(
            (Phase.MID_CHUNK, progress.key, progress.computed_tokens)
            for progress in output.progress
            if progress.computed_tokens < len(self._jobs[progress.key].tokens)
        )

    def _within_answers(self, output: StepOutput) -> tuple[_Reached, ...]:
        """Jobs that generate, and are not over with this step."""
        over = {finished.key for finished in output.finished}
        return tuple(
            (Phase.MID_DECODE, sampled.key, sampled.position + 1)
            for sampled in output.sampled
            if sampled.key not in over and self._jobs[sampled.key].kind is not JobKind.PREFILL
        )
