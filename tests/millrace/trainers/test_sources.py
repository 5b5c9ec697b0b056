"""Sources of settings, as commands name them."""

from pathlib import Path

import pytest

from millrace.trainers.sources import source_of
from millrace.trainers.trainer import SettingsError


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
