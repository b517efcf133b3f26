"""The requests of a case, where they stop, and that the processes' command lines are ones that they read."""

from pathlib import Path

import pytest

from headrace.chaos.cells import PHASES, PROCESS_FAULTS, Cell, Fault, Moment, Target, matrix
from headrace.chaos.checkpoint import make_checkpoint
from headrace.chaos.cluster import Cluster
from headrace.chaos.hold import fault_of, hold_of, holder, message_fault_of
from headrace.chaos.members import NAMES, Kind, Settings, members, of_kind, words
from headrace.chaos.mix import HELD, mix, salted, with_stop
from headrace.chaos.probes import Pair
from headrace.chaos.strike import aimed
from headrace.cli import COMMANDS
from headrace.config import FrontendConfig, GatewayConfig, ProcessConfig, WorkerConfig, read
from headrace.core.errors import StartupError
from headrace.modelfiles.resolve import resolve

HOSTS = dict.fromkeys(NAMES, "127.0.0.1")
EVERYONE = members(HOSTS, range(9000, 9000 + 2 * len(HOSTS)))
SETTINGS = Settings("python", {}, Path("/model"), Path("/cache"), "tcp", Path("/chaos.sock"))
PAIR = Pair("router-1", "prefill-0", "decode-1")


def test_the_requests_answer_in_every_way_and_those_that_are_held_stream_one_choice() -> None:
    asks = {one.name: one for one in mix("m")}
    assert len(asks) >= 6
    assert asks["choices"].body["n"] == 2
    assert not asks["whole"].streams
    for name in HELD:
        assert asks[name].streams
        assert "n" not in asks[name].body
    assert salted(asks["greedy"], "s").body == {**asks["greedy"].body, "cache_salt": "s"}


def test_a_stop_string_is_one_that_occurs_first_in_the_midst_of_the_answer() -> None:
    ask = next(one for one in mix("m") if one.name == "stop")
    answer = "abababababab\ufffd\ufffdabxyz"
    (stop,) = with_stop(ask, answer).body["stop"]  # type: ignore[misc]
    assert answer.find(stop) == answer.index("bxy")
    with pytest.raises(StartupError, match="nothing to stop at"):
        with_stop(ask, "a" * 40)


@pytest.mark.parametrize("member", EVERYONE[1:], ids=lambda member: member.name)
def test_each_process_reads_its_command_line(member: object) -> None:
    (one,) = [each for each in EVERYONE if each is member]
    python, module, name, command, *arguments = words(one, EVERYONE, SETTINGS)
    assert (python, module, name) == ("python", "-m", "headrace.cli")
    config = read(COMMANDS[command][0], arguments, command)
    assert isinstance(config, ProcessConfig)
    assert config.lifeline
    match config:
        case WorkerConfig():
            assert (config.name, config.role, config.port) == (one.name, one.kind.value, one.port)
            assert config.batch_invariant
        case FrontendConfig():
            assert (config.port, config.grpc_port, config.request_timeout_s) == (one.page, one.port, 20.0)
        case GatewayConfig():
            assert set(config.router.split(",")) <= {each.address for each in of_kind(EVERYONE, Kind.ROUTER)}
        case _:
            pytest.fail(f"{command} is no process of the cluster")


def test_every_cell_can_be_aimed(tmp_path: Path) -> None:
    cluster = Cluster(EVERYONE, SETTINGS, tmp_path, None)
    for cell in matrix():
        if cell.proxied:
            harm = message_fault_of(cell)
            assert cell.fault.value.replace("-", "_").startswith(harm.harm.value)
            assert harm.verb.name.lower() == cell.moment.value
            assert holder(cell) is Kind.DECODE
            continue
        if cell.target is Target.WIRE:
            fault = fault_of(cell, "request")
            assert fault.kind.value.replace("_", "-") == cell.fault.value
            assert fault.frame.value == cell.moment.value
            assert holder(cell) is Kind.PREFILL
            continue
        assert hold_of(cell, "request").phase.value.replace("_", "-") == cell.moment.value
        blow = aimed(cell, PAIR, cluster)
        assert cluster.member(blow.victim).kind.value == cell.target.value
        assert blow.victim not in blow.apart_from
        assert bool(blow.apart_from) == (cell.fault is Fault.PARTITION)


def test_who_is_struck_is_who_serves_the_request(tmp_path: Path) -> None:
    cluster = Cluster(EVERYONE, SETTINGS, tmp_path, None)

    def struck(target: Target, fault: Fault, seed: int) -> tuple[str, tuple[str, ...]]:
        blow = aimed(Cell(target, fault, Moment.MID_DECODE, "tcp", seed), PAIR, cluster)
        return blow.victim, blow.apart_from

    assert struck(Target.PREFILL, Fault.PARTITION, 1) == ("prefill-0", ("decode-1",))
    assert struck(Target.DECODE, Fault.PARTITION, 1) == ("decode-1", ("prefill-0",))
    assert struck(Target.GATEWAY, Fault.PARTITION, 0) == ("gateway", ("router-0", "router-1"))
    victim, apart_from = struck(Target.DECODE, Fault.PARTITION, 0)
    assert {victim, *apart_from} == set(NAMES)
    for fault in PROCESS_FAULTS:
        assert struck(Target.ROUTER, fault, 0)[0] == "router-1"
        assert struck(Target.REDIS, fault, 0)[0] == "redis"


def test_a_hold_stands_at_another_place_for_another_seed() -> None:
    for phase in (Moment.MID_CHUNK, Moment.MID_DECODE):
        places = {hold_of(Cell(Target.DECODE, Fault.KILL, phase, "tcp", seed), "r").at for seed in range(3)}
        assert len(places) == 3
        assert min(places) > 0
    assert len(PHASES) == 6


def test_the_checkpoint_is_a_model_and_always_the_same(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        make_checkpoint(tmp_path / name)
        files = resolve(str(tmp_path / name), tmp_path / "cache")
        assert files.config.kv_heads == 4
        digests.append(files.digest)
    assert digests[0] == digests[1]
