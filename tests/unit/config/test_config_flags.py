"""A command line that cannot be read ends with one sentence that names the flag, and no page of usage."""

import pytest

from headrace.cli import main


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["up", "--prefil=2"], "There is no flag --prefil. Did you mean --prefill?"),
        (["worker", "--max-model-length", "512"], "There is no flag --max-model-length. Did you mean --max-model-len?"),
        (["up", "--data-port-ranges=1-2"], "There is no flag --data-port-ranges. Did you mean --data-port-range?"),
        (
            ["worker", "--no-enable-prefix-cachin"],
            "There is no flag --no-enable-prefix-cachin. Did you mean --no-enable-prefix-caching?",
        ),
        (["bench", "engine", "--jsn"], "There is no flag --jsn. Did you mean --json?"),
        (["frontend", "--zzz"], "There is no flag --zzz. See --help."),
        (["up", "--bogus"], "There is no flag --bogus. See --help."),
        # Words that stand alone and what only a supervisor says are no flags that somebody meant.
        (["up", "--models=x"], "There is no flag --models. See --help."),
        (["worker", "--lifelin"], "There is no flag --lifelin. See --help."),
        (["up", "--port"], "--port needs a value. Write --port=VALUE."),
        (["up", "smollm2-135m", "another"], "There is one word too many: 'another'. Flags begin with --; see --help."),
        (
            ["up", "--data-port-range=9200"],
            "--data-port-range: String should match pattern '^(\\d+-\\d+)?$'. See --help.",
        ),
        (["gateway", ""], "There is one word too many: ''. Flags begin with --; see --help."),
        (["bench", "handoff", "--gbits=inf"], "--gbits: Input should be a finite number. See --help."),
        (
            ["status", "--url=http://name:hidden@[::1"],
            "The gateway at http://[::1 does not answer: Invalid port: ':1'."
            " Start one with `headrace up`, or give --url.",
        ),
        (["bench"], "ACTION is missing: engine or handoff: what is measured. See --help."),
        # A slip in what is there is told before what is not there.
        (["bench", "--bogus"], "There is no flag --bogus. See --help."),
        (["explain", "--jsn=yes"], "There is no flag --jsn. Did you mean --json?"),
        (["config", "check", "--json"], "There is no flag --json. See --help."),
        (["config", "--", "--bogus"], "FILE is missing: the YAML file. See --help."),
        (
            ["bench", "--rounds", "3", "--json", "--no-json"],
            "ACTION is missing: engine or handoff: what is measured. See --help.",
        ),
        (["bench", "bogus"], "ACTION: Input should be 'engine' or 'handoff'. See --help."),
        (["config", "bogus", "file"], "ACTION: Input should be 'check'. See --help."),
        (["config", "check"], "FILE is missing: the YAML file. See --help."),
        (["explain"], "REQUEST is missing: the x-request-id of its response. See --help."),
        (
            ["up", "--port=many"],
            "--port: Input should be a valid integer, unable to parse string as an integer. See --help.",
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err == f"headrace: {sentence}\n"
    assert captured.out == ""
