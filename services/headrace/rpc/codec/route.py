"""Codec of routes and explanations."""

from headrace.core.lifecycle import Phase, Transition
from headrace.core.route import Candidate, Explanation, Pull, Route
from headrace.rpc.codec.fleet import ROLE, decode_ref, encode_ref
from headrace.rpc.codec.notes import decode_attempt_note, decode_part, encode_attempt_note, encode_part
from headrace.rpc.codec.values import EnumCodec, part, refusing
from headrace.rpc.v1 import fleet_pb2 as pb

_PHASE = EnumCodec(Phase, pb.Phase, "PHASE_")


@refusing("The request's id")
def encode_explain(request: str) -> pb.ExplainRequest:
    return pb.ExplainRequest(request=request)


@refusing("The explanation")
def encode_explanation(explanation: Explanation) -> pb.Explanation:
    return pb.Explanation(
        request=explanation.request,
        model=explanation.model,
        prompt_tokens=explanation.prompt_tokens,
        routes=[_encode_route(route) for route in explanation.routes],
        transitions=[_encode_transition(transition) for transition in explanation.transitions],
        outcome=explanation.outcome,
        actual_cached_tokens=explanation.actual_cached_tokens,
        actual_ttft_ms=explanation.actual_ttft_ms,
        notes=[encode_attempt_note(note) for note in explanation.notes],
        waterfall=[encode_part(part) for part in explanation.waterfall],
    )


def decode_explanation(message: pb.Explanation) -> Explanation:
    return Explanation(
        request=message.request,
        model=message.model,
        prompt_tokens=message.prompt_tokens,
        routes=tuple(_decode_route(route) for route in message.routes),
        transitions=tuple(_decode_transition(transition) for transition in message.transitions),
        outcome=message.outcome,
        actual_cached_tokens=message.actual_cached_tokens,
        actual_ttft_ms=message.actual_ttft_ms,
        notes=tuple(decode_attempt_note(note) for note in message.notes),
        waterfall=tuple(decode_part(part) for part in message.waterfall),
    )


def _encode_route(route: Route) -> pb.Route:
    return pb.Route(
        decode=encode_ref(route.decode),
        prefill=encode_ref(route.prefill) if route.prefill else None,
        cached_tokens=route.cached_tokens,
        expected_ttft_ms=route.expected_ttft_ms,
        candidates=[_encode_candidate(candidate) for candidate in route.candidates],
        reasons=route.reasons,
        pull=_encode_pull(route.pull) if route.pull else None,
    )


def _decode_route(message: pb.Route) -> Route:
    part(message, "decode")
    return Route(
        decode=decode_ref(message.decode),
        prefill=decode_ref(message.prefill) if message.HasField("prefill") else None,
        cached_tokens=message.cached_tokens,
        expected_ttft_ms=message.expected_ttft_ms,
        candidates=tuple(_decode_candidate(candidate) for candidate in message.candidates),
        reasons=tuple(message.reasons),
        pull=_decode_pull(message.pull) if message.HasField("pull") else None,
    )


def _encode_pull(pull: Pull) -> pb.Pull:
    return pb.Pull(
        holder=encode_ref(pull.holder), tokens=pull.tokens, fetch_ms=pull.fetch_ms, compute_ms=pull.compute_ms
    )


def _decode_pull(message: pb.Pull) -> Pull:
    part(message, "holder")
    return Pull(decode_ref(message.holder), message.tokens, message.fetch_ms, message.compute_ms)


def _encode_candidate(candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        worker=encode_ref(candidate.worker),
        role=ROLE.encode(candidate.role),
        cached_tokens=candidate.cached_tokens,
        running=candidate.running,
        waiting=candidate.waiting,
        credits=candidate.credits,
        score=candidate.score,
        chosen=candidate.chosen,
        why=candidate.why,
    )


def _decode_candidate(message: pb.Candidate) -> Candidate:
    return Candidate(
        worker=decode_ref(message.worker),
        role=ROLE.decode(message.role),
        cached_tokens=message.cached_tokens,
        running=message.running,
        waiting=message.waiting,
        credits=message.credits,
        score=message.score,
        chosen=message.chosen,
        why=message.why,
    )


def _encode_transition(transition: Transition) -> pb.Transition:
    return pb.Transition(
        before=_PHASE.encode(transition.before), after=_PHASE.encode(transition.after), at=transition.at
    )


def _decode_transition(message: pb.Transition) -> Transition:
    return Transition(_PHASE.decode(message.before), _PHASE.decode(message.after), message.at)
