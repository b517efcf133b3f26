"""Configuration of every process: one class each, read from flags over environment over file over defaults.

The only reader of the environment (`HEADRACE_*`, one variable a field). It decides nothing: `bootstrap` does.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliPositionalArg,
    CliSettingsSource,
    CliSuppress,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from headrace import config_flags, config_help
from headrace.config_file import Document, Names, Values, load
from headrace.core.errors import StartupError
from headrace.store.address import without_secrets

_DEFAULT_MODEL = "smollm2-135m"
CACHE_DIR = Path("~/.cache/headrace")
LOOPBACK = "127.0.0.1"
_PREFIX = "HEADRACE_"
_HIDDEN = "***"


def _showable(key: SecretStr) -> SecretStr:
    """Nobody could show another one: it travels in a header, without what surrounds it."""
    text = key.get_secret_value()
    if text != text.strip() or not (text.isascii() and text.isprintable()):
        raise PydanticCustomError("key", "A key is printable ASCII, without spaces or line ends around it")
    return key


Key = Annotated[SecretStr, AfterValidator(_showable)]

# A year: sockets and locks refuse to wait for as long as a number can say.
LONGEST_S = 365 * 86400.0
Seconds = Annotated[float, Field(le=LONGEST_S)]


class ProcessConfig(BaseSettings):
    """What every process has."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_prefix_target="all",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        allow_inf_nan=False,
        frozen=True,
        extra="forbid",
    )

    section: ClassVar[str] = ""

    config: Path | None = Field(None, description="the deployment's YAML file; flags and environment go over it")
    fleet: str = Field("default", pattern=r"^[A-Za-z0-9._-]+$", description="name of the fleet in a shared Redis")
    redis_url: SecretStr = Field(SecretStr(""), description="the fleet's Redis; only `up` can do without one")
    worker_token: SecretStr = Field(SecretStr(""), description="shared secret of routers and workers")
    cache_dir: Path = Field(CACHE_DIR, description="downloaded models and what is derived from them")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    log_json: bool = Field(False, description="log JSON instead of key=value")
    drain_s: Seconds = Field(8.0, ge=0, description="what running answers get to finish when it stops")
    lifeline: CliSuppress[bool] = Field(False, description="stop when standard input closes: set by the supervisor")


class EngineConfig(ProcessConfig):
    """How a replica runs; the names are vLLM's where the thing is the same."""

    engine: Literal["torch", "fake"] = Field("torch", description="fake: no weights, deterministic tokens")
    fake_step_ms: float = Field(0.0, ge=0, description="time that a step of the fake engine takes")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="weights and KV; auto is bfloat16"
    )
    max_model_len: int | None = Field(None, ge=16, description="context in tokens; default: the model's")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences a worker runs at once")
    max_num_batched_tokens: int = Field(128, ge=16, description="tokens of one engine step")
    max_step_ms: float = Field(0.0, ge=0, description="prompts get what a step can do in this time; 0: no such limit")
    block_size: int = Field(16, ge=16, le=1024, multiple_of=16, description="tokens of a KV page; a multiple of 16")
    kv_cache_memory_bytes: int | None = Field(None, ge=1, description="bytes of a worker's KV pages; default: 1 GiB")
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="instead: share of the free memory that weights and KV pages take"
    )
    stall_s: Seconds = Field(60.0, gt=0, description="a worker whose engine stands still this long is not ready")
    enable_prefix_caching: bool = Field(True, description="reuse KV of equal prefixes")
    batch_invariant: bool = Field(False, description="same bits whatever else runs; all workers of a model alike")
    tensor_parallel_size: Annotated[Literal[1, 2, 4], BeforeValidator(int)] = Field(
        1, description="ranks, each a process, that share a replica: 1, 2 or 4"
    )
    kernels: Literal["auto", "native", "torch"] = Field(
        "auto", description="who computes on the CPU; auto: native where the model and the processor allow it"
    )
    cpu_isa: Literal["auto", "avx2", "avx512", "avx512bf16"] = Field(
        "auto", description="instruction set of the native kernels; auto: the best that works on the processor"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="where weights, KV pages and steps are")
    enforce_eager: bool = Field(False, description="on a GPU: capture no decode step in a graph")
    quantization: Literal["gguf", "int8", "int4"] | None = Field(
        None, description="gguf: keeps a GGUF's own bits; int8, int4: rounds weights; int4 keeps Q4_0 and Q4_1"
    )
    link: Literal["ucx", "tcp", "nccl"] = Field("ucx", description="how KV pages travel")
    ucx_tls: str = Field("tcp,self", description="UCX transports; shared memory is opt-in: tcp,posix,self")
    data_port_range: str = Field(
        "",
        pattern=r"^(\d+-\d+)?$",
        description="ports that ucx and tcp listen on, as 9200-9299; default: any free ones",
    )
    lease_ttl_s: Seconds = Field(10.0, gt=0, description="a silent worker is forgotten after this")
    lease_every_s: Seconds = Field(3.0, gt=0, description="how often the lease is renewed")


class WorkerConfig(EngineConfig):
    """Run one worker: it takes prefill, decode or local jobs from routers."""

    section: ClassVar[str] = "worker"

    pool: str = Field("", description="worker pool of the configuration file that it belongs to")
    model: CliPositionalArg[str] = Field(_DEFAULT_MODEL, description="alias, directory, .gguf file or hub id")
    role: Literal["prefill", "decode", "local"] = Field("local", description="which jobs it is offered")
    name: str = Field("", description="name that survives restarts; default: role, host and process id")
    host: str = Field(LOOPBACK, description="address to listen on, for gRPC and KV pages")
    port: int = Field(0, ge=0, le=65535, description="gRPC port; 0: any free one")
    advertise_host: str = Field("", description="address that others reach it at; default: --host")
    metrics_port: int = Field(0, ge=0, le=65535, description="own Prometheus page; 0: none")
    served_model_name: str = Field("", description="name that clients ask for; default: the model's")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all cores")
    chaos_socket: CliSuppress[Path | None] = Field(None, description="be under this chaos harness: set by it")


class AdminConfig(ProcessConfig):
    """Who may change the fleet."""

    admin_api_key: Key = Field(SecretStr(""), description="operators' key, for drains; API keys are none")


class RouterConfig(AdminConfig):
    """Run a router: it conducts requests over the fleet's workers."""

    section: ClassVar[str] = "router"

    model: CliPositionalArg[str] = Field(_DEFAULT_MODEL, description="alias, directory, .gguf file or hub id")
    served_model_name: str = Field("", description="name that clients ask for; default: the model's")
    disaggregation: Literal["always", "auto", "never"] = Field(
        "always", description="whether prompts go to prefill workers"
    )
    kv_pull: Literal["auto", "off"] = Field(
        "auto", description="whether a worker fetches a prefix that another has cached where that is quicker"
    )
    grpc_host: str = Field(LOOPBACK, description="address to listen on for gRPC")
    grpc_port: int = Field(9000, ge=0, le=65535, description="gRPC port; 0: any free one")
    max_queue: int = Field(1024, ge=1, description="requests that may wait for a worker")
    metrics_port: int = Field(0, ge=0, le=65535, description="own Prometheus page; 0: none")


class HttpConfig(AdminConfig):
    """Where a gateway listens and whom it answers."""

    host: str = Field(LOOPBACK, description="address to listen on for HTTP")
    port: int = Field(8000, ge=0, le=65535, description="HTTP port; 0: any free one")
    api_keys: tuple[Key, ...] = Field((), description="accepted API keys, a JSON list; none: no authentication")
    request_timeout_s: Seconds = Field(600.0, gt=0, description="longest time one answer may take")


class GatewayConfig(HttpConfig):
    """Run a gateway: the OpenAI-compatible HTTP door of a router elsewhere."""

    section: ClassVar[str] = "gateway"

    router: str = Field(
        f"{LOOPBACK}:9000",
        description="host:port of the router's gRPC service; several with commas; a name means all its addresses",
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="own Prometheus page; 0: none")


class FrontendConfig(RouterConfig, HttpConfig):
    """Run gateway and router in one process."""

    section: ClassVar[str] = "frontend"


class UpConfig(FrontendConfig, EngineConfig):
    """Run a whole cluster on this machine: Redis, frontend and workers. Ctrl-C drains and stops it."""

    section: ClassVar[str] = "up"

    prefill: int | None = Field(None, ge=0, le=64, description="prefill workers (1 unless a role is named)")
    decode: int | None = Field(None, ge=0, le=64, description="decode workers (1 unless a role is named)")
    local: int | None = Field(None, ge=0, le=64, description="workers that do both (0)")
    threads: int = Field(0, ge=0, description="CPU threads of a worker; 0: cores divided by workers")
    placement: Literal["process", "ray"] = Field("process", description="workers as child processes or as Ray actors")
    ray_address: str = Field("", description="host:port of a Ray on this machine; default: start one")
    state_file: Path | None = Field(None, description="write what runs where to this JSON file")

    def roles(self) -> dict[str, int]:
        """Workers wanted by role; naming any role makes the unnamed ones 0."""
        named = {"prefill": self.prefill, "decode": self.decode, "local": self.local}
        if all(count is None for count in named.values()):
            return {"prefill": 1, "decode": 1, "local": 0}
        return {role: count or 0 for role, count in named.items()}


class PlacementConfig(ProcessConfig):
    """Keep the worker pools of a configuration file placed, in a Ray cluster or on this machine, until stopped."""

    section: ClassVar[str] = "placement"

    placement: Literal["process", "ray"] = Field("ray", description="workers as Ray actors or as child processes")
    ray_address: str = Field("", description="ray://host:port, or host:port on one of its machines; default: start one")
    ready_s: Seconds = Field(600.0, gt=0, description="what a worker may take to load its model and serve")


SECTIONS: dict[str, type[ProcessConfig]] = {
    kind.section: kind
    for kind in (FrontendConfig, RouterConfig, GatewayConfig, WorkerConfig, PlacementConfig, UpConfig)
}
_NOT_IN_FILES = frozenset({"config", "lifeline", "pool", "chaos_socket"})
_SHARED = frozenset({*ProcessConfig.model_fields, "model", "served_model_name"}) - _NOT_IN_FILES
NAMES = Names(_SHARED, {name: frozenset(kind.model_fields) - _NOT_IN_FILES for name, kind in SECTIONS.items()})

Config = TypeVar("Config", bound=BaseSettings)
Process = TypeVar("Process", bound=ProcessConfig)


def read(config: type[Config], arguments: Sequence[str], command: str = "") -> Config:
    """The configuration from command line, environment and file. Raises StartupError with one sentence a mistake;
    --help ends the process with code 0."""
    try:
        first = _parsed(config, arguments, command)
        if not isinstance(first, ProcessConfig) or first.config is None:
            return first
        over = _over_file(type(first), load(first.config, NAMES), getattr(first, "pool", ""))
        return _parsed(over, arguments, command)
    except ValidationError as error:
        mistakes = [f"{_told(item['loc'], config, arguments)}: {item['msg'].rstrip('.')}." for item in error.errors()]
        raise StartupError(" ".join(mistakes), remedy="See --help.") from None
    except SettingsError as error:
        if str(error).startswith(config_flags.COMPLAINT):
            raise config_flags.misread(str(error), config, arguments) from None
        raise StartupError(
            f"{_unreadable(config)} cannot be read.", remedy='A variable with several values is JSON: ["one", "two"].'
        ) from None


def _told(location: tuple[int | str, ...], config: type[BaseSettings], arguments: Sequence[str]) -> str:
    """What the value that is at fault came from: a variable, where one is set and no flag goes over it."""
    name = config_flags.named(location, config)
    variable = f"{_PREFIX}{name.lstrip('-').replace('-', '_').upper()}"
    return variable if variable in os.environ and not config_flags.given(name, arguments) else name


def _parsed(config: type[Config], arguments: Sequence[str], command: str) -> Config:
    source = CliSettingsSource[Any](
        config,
        cli_prog_name=f"headrace {command}".strip(),
        cli_exit_on_error=False,
        add_argument_method=config_help.add_argument,
    )
    return CliApp.run(config, cli_args=list(arguments), cli_settings_source=source)


def _over_file(config: type[Process], document: Document, pool: str) -> type[Process]:
    """The same class with the document's values under flags and environment, over its own defaults."""
    values = _values(config, document, pool)

    class OverFile(config):  # type: ignore[misc, valid-type]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=dict(values))

    OverFile.__doc__ = config.__doc__
    return OverFile


def _values(config: type[ProcessConfig], document: Document, pool: str) -> Values:
    """What a document says to one process. `up` is frontend and workers at once."""
    values = {**document.shared}
    if config.section == UpConfig.section:
        values |= {key: value for key, value in document.section("worker").items() if key in EngineConfig.model_fields}
        values |= document.section(FrontendConfig.section)
    values |= document.section(config.section)
    if pool:
        values |= document.pool(pool)
    return {key: value for key, value in values.items() if key in config.model_fields}


def _unreadable(config: type[BaseSettings]) -> str:
    """The variables of which one is at fault: those that hold several values. pydantic does not say which."""
    several = [f"{_PREFIX}{name.upper()}" for name, field in config.model_fields.items() if field.default == ()]
    return " or ".join(name for name in several if name in os.environ) or "The configuration"


def derive(target: type[Process], source: ProcessConfig, **own: object) -> Process:
    """A configuration of another process: the fields that both have, from `source`, and those of its `own`."""
    shared = {name: getattr(source, name) for name in target.model_fields if name in type(source).model_fields}
    return target(**{**shared, "config": None, **own})


def effective(config: ProcessConfig) -> dict[str, object]:
    """Every field in plain types, for people and logs: of a secret whether there is one, of Redis also which."""
    return {name: _shown(name, getattr(config, name), plain) for name, plain in config.model_dump(mode="json").items()}


def _shown(name: str, value: object, plain: object) -> object:
    if isinstance(value, tuple):
        return [_HIDDEN for _ in value]
    if not isinstance(value, SecretStr):
        return plain
    secret = value.get_secret_value()
    return _shown_redis(secret) if name == "redis_url" and secret else _HIDDEN if secret else ""


def _shown_redis(url: str) -> str:
    """With a mark where secrets were left out."""
    shown = without_secrets(url)
    return shown if shown == url or _HIDDEN in shown else shown.replace("://", f"://{_HIDDEN}@", 1)


def arguments(config: ProcessConfig) -> list[str]:
    """The command line that reads back as `config`. Secrets are left out: they travel in the environment."""
    out: list[str] = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if value == field.default or isinstance(value, SecretStr | tuple) or value is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            out.append(flag if value else f"--no-{name.replace('_', '-')}")
        elif name == "model":
            out.append(str(value))
        else:
            out.append(f"{flag}={value}")
    return out


def child_environment(config: ProcessConfig, threads: int) -> dict[str, str]:
    """The environment of a child process on this machine: ours, and what is its own."""
    return {**inherited_environment(), **own_environment(config, threads)}


def inherited_environment() -> dict[str, str]:
    """What a process gets of its machine's environment. Our settings are left out: they would speak where the
    process's command line is silent because it wants the default."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(_PREFIX)}


def own_environment(config: ProcessConfig, threads: int) -> dict[str, str]:
    """The part of a process's environment that is its own wherever it runs: secrets, and its share of the cores."""
    environment = {}
    for name in type(config).model_fields:
        if (secret := _secret(getattr(config, name))) is not None:
            environment[f"{_PREFIX}{name.upper()}"] = secret
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment


def _secret(value: object) -> str | None:
    """A secret, or several, as a variable holds it; None for what is no secret."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return json.dumps([each.get_secret_value() for each in value]) if isinstance(value, tuple) else None


def python() -> str:
    """The interpreter that runs us: children run under the same."""
    return sys.executable
