"""A config.json as published and as transformers 5 writes it anew describe the same model."""

import json
import warnings
from pathlib import Path

import pytest
from fixtures.public_configs import PUBLIC

from headrace.modelfiles.config_json import missing_parts, model_config


@pytest.mark.parametrize("name", PUBLIC)
def test_both_forms_say_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLIC[name]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig

        AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "new")
    anew = json.loads((tmp_path / "new" / "config.json").read_bytes())
    assert anew.keys() != PUBLIC[name].keys()
    assert missing_parts(anew) == ()
    assert model_config(anew) == model_config(PUBLIC[name])
