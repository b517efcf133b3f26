"""Codec of the two streams of `Worker.Attach`: commands and reports."""

from headrace.core.errors import InvalidRequest
from headrace.core.jobs import (
    Abort,
    Activate,
    Busy,
    Command,
    Committed,
    Drain,
    Events,
    Freeze,
    Frozen,
    Granted,
    Hello,
    Meet,
    Met,
    Report,
    Submit,
    Welcome,
)
from headrace.rpc.codec.fleet import decode_info, decode_load, decode_ref, encode_info, encode_load, encode_ref
from headrace.rpc.codec.jobs import (
    decode_ending,
    decode_job,
    decode_key,
    decode_ticket,
    decode_token_event,
    encode_ending,
    encode_job,
    encode_key,
    encode_ticket,
    encode_token_event,
)
from headrace.rpc.codec.notes import decode_note, encode_note
from headrace.rpc.codec.values import grace, part, refusing, token_ids
from headrace.rpc.v1 import worker_pb2 as pb


@refusing("The command")
def encode_command(command: Command) -> pb.Command:
    match command:
        case Hello():
            encoded = pb.Command(hello=_encode_hello(command))
        case Submit(job):
            encoded = pb.Command(submit=pb.Submit(job=encode_job(job)))
        case Activate(key, first_token):
            (token_id,) = token_ids((first_token,))
            encoded = pb.Command(activate=pb.Activate(key=encode_key(key), first_token=token_id))
        case Abort(key, lost):
            encoded = pb.Command(abort=pb.Abort(key=encode_key(key), lost=lost))
        case Meet(peer, link, address):
            encoded = pb.Command(meet=pb.Meet(peer=encode_ref(peer), link=link, address=address))
        case Drain(grace_s):
            encoded = pb.Command(drain=pb.Drain(grace_s=grace_s))
        case Freeze(key):
            encoded = pb.Command(freeze=pb.Freeze(key=encode_key(key)))
    return encoded


def decode_command(message: pb.Command) -> Command:
    match message.WhichOneof("kind"):
        case "hello":
            hello = message.hello
            command: Command = Hello(hello.router, hello.token, hello.protocol, hello.oldest, hello.weights)
        case "submit":
            command = Submit(decode_job(message.submit.job))
        case "activate":
            (token_id,) = token_ids((message.activate.first_token,))
            command = Activate(decode_key(message.activate.key), token_id)
        case "abort":
            command = Abort(decode_key(message.abort.key), message.abort.lost)
        case "meet":
            part(message.meet, "peer")
            command = Meet(decode_ref(message.meet.peer), message.meet.link, message.meet.address)
        case "drain":
            command = Drain(grace(message.drain.grace_s))
        case "freeze":
            command = Freeze(decode_key(message.freeze.key))
        case _:
            raise InvalidRequest("A command of a kind that this worker does not know.")
    return command


def _encode_hello(hello: Hello) -> pb.Hello:
    return pb.Hello(
        router=hello.router,
        token=hello.token,
        protocol=hello.protocol,
        oldest=hello.oldest,
        weights=hello.weights,
    )


@refusing("The report")
def encode_report(report: Report) -> pb.Report:
    match report:
        case Welcome(info, load):
            encoded = pb.Report(welcome=pb.Welcome(info=encode_info(info), load=encode_load(load)))
        case Granted(key, ticket, resident):
            granted = pb.Granted(key=encode_key(key), ticket=encode_ticket(ticket), resident_tokens=resident)
            encoded = pb.Report(granted=granted)
        case Committed(key, note):
            encoded = pb.Report(committed=pb.Committed(key=encode_key(key), note=encode_note(note)))
        case Busy(key, retry_after_s):
            encoded = pb.Report(busy=pb.Busy(key=encode_key(key), retry_after_s=retry_after_s))
        case Events():
            encoded = pb.Report(events=_encode_events(report))
        case Met(peer, reason, ms):
            encoded = pb.Report(met=pb.Met(peer=encode_ref(peer), reason=reason, ms=ms))
        case Frozen(key, tokens):
            encoded = pb.Report(frozen=pb.Frozen(key=encode_key(key), tokens=tokens))
    return encoded


def decode_report(message: pb.Report) -> Report:
    match message.WhichOneof("kind"):
        case "welcome":
            part(message.welcome, "info")
            report: Report = Welcome(decode_info(message.welcome.info), decode_load(message.welcome.load))
        case "granted":
            granted = message.granted
            part(granted, "ticket")
            report = Granted(decode_key(granted.key), decode_ticket(granted.ticket), granted.resident_tokens)
        case "committed":
            part(message.committed, "note")
            report = Committed(decode_key(message.committed.key), decode_note(message.committed.note))
        case "busy":
            report = Busy(decode_key(message.busy.key), message.busy.retry_after_s)
        case "events":
            report = _decode_events(message.events)
        case "met":
            part(message.met, "peer")
            report = Met(decode_ref(message.met.peer), message.met.reason, message.met.ms)
        case "frozen":
            report = Frozen(decode_key(message.frozen.key), message.frozen.tokens)
        case _:
            raise InvalidRequest("A report of a kind that this router does not know.")
    return report


def _encode_events(events: Events) -> pb.Events:
    return pb.Events(
        tokens=[encode_token_event(event) for event in events.tokens],
        endings=[encode_ending(ending) for ending in events.endings],
        load=encode_load(events.load),
        draining=events.draining,
    )


def _decode_events(message: pb.Events) -> Events:
    return Events(
        tokens=tuple(decode_token_event(event) for event in message.tokens),
        endings=tuple(decode_ending(ending) for ending in message.endings),
        load=decode_load(message.load),
        draining=message.draining,
    )
