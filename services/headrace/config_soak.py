"""Configuration of `headrace soak`: how much is asked, by how many, on what and where.

Read by `config.read`, like every other.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic_settings import BaseSettings

from headrace.config import ProcessConfig


class SoakConfig(BaseSettings):
    """Thousands of requests to a cluster of its own under cancels, deaths and drains; nothing may grow."""

    model_config = ProcessConfig.model_config

    requests: PositiveInt = Field(5000, le=1_000_000, description="requests on each link, at least")
    laps: PositiveInt = Field(15, le=10_000, description="laps that they are shared out to; each ends in a quiet point")
    clients: PositiveInt = Field(24, le=1_000, description="clients that ask at once")
    link: tuple[Literal["ucx", "tcp"], ...] = Field(("ucx",), description="how KV pages travel: ucx,tcp")
    seed: NonNegativeInt = Field(0, description="which plan of requests, cancels, deaths and drains")
    list_only: bool = Field(False, alias="list", description="print the plan and run nothing")
    model: str = Field("", description="directory or .gguf file; default: a tiny one of random weights")
    network: Literal["auto", "namespaces", "host"] = Field(
        "auto", description="a network namespace a process, or this machine's network and no partitions"
    )
    logs: Path | None = Field(None, description="keep the processes' logs in this directory")
    report: Path | None = Field(None, description="put the table into this page, where it has a place for it")
    json_output: bool = Field(False, alias="json", description="print JSON")
