"""Sources of settings, as commands name them."""

import re
from pathlib import Path

import pytest

from millrace.trainers.catalogue import trainer_of
from millrace.trainers.sources import source_of
from millrace.trainers.trainer import SettingsError, SettingsSource


def test_a_quoted_command_line_stands_beside_files(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[training]\n", "utf-8")
    source = source_of([str(file), "torchrun -m torchtitan.train --job.config_file job.toml"], {})
    assert source.files == {
        "job.toml": "[training]\n",
        "": "torchrun -m torchtitan.train --job.config_file job.toml",
    }


def test_words_of_a_command_line_need_no_quotes() -> None:
    source = source_of(["torchrun", "train.py", "--lr", "1"], {})
    assert source.files == {"": "torchrun train.py --lr 1"}


def test_a_source_has_a_name() -> None:
    with pytest.raises(SettingsError, match="name a file, a folder, or the command line"):
        source_of([" "], {})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.sh": "bash b.sh conf/x.yaml", "b.sh": "y"}, "it names conf/x.yaml: give these too"),
        ({"a.sh": "colossalai run t.py"}, "settings of ColossalAI, which is not read here"),
        ({"a.sh": "python t.py"}, "--per_device_train_batch_size of transformers' Trainer"),
    ],
)
def test_what_was_looked_for_is_said_where_nothing_fits(files: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)) as refused:
        trainer_of(SettingsSource(files=files, values={}))
    assert "--model, --cluster" in str(refused.value)
