"""Configuration of the commands that ask a cluster, a process, a model or a file, and are over then.

Read by `config.read`, like every other.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, CliPositionalArg

from headrace.config import CACHE_DIR, Key, ProcessConfig, Seconds


class ClientConfig(BaseSettings):
    """What the commands that talk to a running cluster share."""

    model_config = ProcessConfig.model_config

    url: str = Field("http://127.0.0.1:8000", description="where the gateway listens")
    api_key: Key = Field(SecretStr(""), description="API key, where the gateway wants one")


class ChatConfig(ClientConfig):
    """Chat with the model in the terminal, or send one message and print the answer."""

    message: CliPositionalArg[str] = Field("", description="the message; empty: a conversation")
    model: str = Field("", description="model; default: the first one served")
    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    max_tokens: int | None = Field(None, ge=1, description="longest answer")


class OperatorConfig(ClientConfig):
    """What the commands of operators share."""

    admin_api_key: Key = Field(SecretStr(""), description="operators' key, where the gateway has one")

    @property
    def key(self) -> str:
        """The one to show."""
        return (self.admin_api_key if self.admin_api_key.get_secret_value() else self.api_key).get_secret_value()


class StatusConfig(OperatorConfig):
    """Show the fleet: workers, roles, load."""

    json_output: bool = Field(False, alias="json", description="print JSON")


class ExplainConfig(OperatorConfig):
    """Show where a request went and why."""

    request: CliPositionalArg[str] = Field(description="the x-request-id of its response")
    json_output: bool = Field(False, alias="json", description="print JSON")


class DrainConfig(OperatorConfig):
    """Have a worker give its requests to others and leave; what supervises it starts it again."""

    worker: CliPositionalArg[str] = Field(description="its name, or name@incarnation, as `headrace status` shows it")
    grace_s: Seconds = Field(0.0, ge=0, le=86400, description="what its requests get; 0: the worker's own --drain-s")
    timeout_s: Seconds = Field(120.0, ge=0, description="longest wait for it to leave; 0: do not wait")


class HealthConfig(BaseSettings):
    """Ask one process whether it is well: exit code 0 if it is, 1 if not."""

    model_config = ProcessConfig.model_config

    address: CliPositionalArg[str] = Field("http://127.0.0.1:8000/ready", description="URL, or host:port of gRPC")
    timeout_s: Seconds = Field(4.0, gt=0, description="longest wait for an answer")


class ModelsConfig(BaseSettings):
    """List the models that can be run, or say of one whether it can and what is missing."""

    model_config = ProcessConfig.model_config

    checkpoint: CliPositionalArg[str] = Field("", description="alias, directory, .gguf file or hub id; empty: the list")
    cache_dir: Path = Field(CACHE_DIR, description="downloaded models and what is derived from them")
    json_output: bool = Field(False, alias="json", description="print JSON")


class CheckConfig(BaseSettings):
    """Check a deployment's configuration file and show what each process makes of it."""

    model_config = ProcessConfig.model_config

    action: CliPositionalArg[Literal["check"]] = Field(description="check: what to do with the file")
    file: CliPositionalArg[Path] = Field(description="the YAML file")
