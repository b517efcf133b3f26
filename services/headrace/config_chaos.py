"""Configuration of `headrace chaos`: which cases are played, on what and where.

Read by `config.read`, like every other. The names of targets, faults and moments are those of `chaos.cells`.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt
from pydantic_settings import BaseSettings

from headrace.config import ProcessConfig

Target = Literal["prefill", "decode", "router", "gateway", "redis", "wire"]
Blow = Literal["kill", "freeze", "partition", "restart"]
Damage = Literal["duplicated", "delayed", "reordered", "truncated", "corrupted", "corrupted-header", "lost", "cut"]
Phase = Literal["before-grant", "after-grant", "mid-chunk", "before-commit", "after-commit", "mid-decode"]
Frame = Literal["unit", "end"]
Message = Literal["offer", "pull", "data", "taken"]


class ChaosConfig(BaseSettings):
    """Strike a cluster of its own at exact moments and check every answer and every resource."""

    model_config = ProcessConfig.model_config

    target: tuple[Target, ...] = Field((), description="what is struck: prefill,decode,router,gateway,redis,wire")
    fault: tuple[Blow | Damage, ...] = Field((), description="how: kill,freeze,partition,restart, or a frame's")
    phase: tuple[Phase | Frame | Message, ...] = Field(
        (), description="when: a request's phase, or which frame or message"
    )
    link: tuple[Literal["ucx", "tcp"], ...] = Field((), description="how KV pages travel: ucx,tcp")
    seed: tuple[NonNegativeInt, ...] = Field((), description="which variations, such as 0,1")
    subset: Literal["all", "ci"] = Field("all", description="ci: few cases, with every value of each of these")
    limit: int = Field(0, ge=0, description="at most so many cases, evenly spread; 0: all")
    list_only: bool = Field(False, alias="list", description="print the cases and run none")
    model: str = Field("", description="directory or .gguf file; default: a tiny one of random weights")
    network: Literal["auto", "namespaces", "host"] = Field(
        "auto", description="a network namespace a process, or this machine's network and no partitions"
    )
    logs: Path | None = Field(None, description="keep the processes' logs in this directory")
    report: Path | None = Field(None, description="put the table into this page, where it has a place for it")
    json_output: bool = Field(False, alias="json", description="print JSON, a row a case")
