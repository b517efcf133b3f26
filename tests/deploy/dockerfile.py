"""Reads a Dockerfile: its instructions, by stage."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. stage: which FROM it follows, -1 before the first."""

    word: str
    text: str
    stage: int


@dataclass(frozen=True, slots=True)
class Dockerfile:
    instructions: tuple[Instruction, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        stage, found = -1, []
        for line in "\n".join(lines).replace("\\\n", " ").splitlines():
            word, _, text = line.strip().partition(" ")
            if word:
                stage += word == "FROM"
                found.append(Instruction(word, text.strip(), stage))
        return cls(tuple(found))

    @property
    def stages(self) -> int:
        return 1 + max(each.stage for each in self.instructions)

    def last_stage(self, word: str) -> list[str]:
        """The texts of the instruction in the stage that becomes the image."""
        return [each.text for each in self.instructions if each.stage == self.stages - 1 and each.word == word]

    def last(self, word: str) -> str:
        return self.last_stage(word)[-1]
