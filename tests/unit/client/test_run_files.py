"""Where files of a run are saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.client.errors import BadReply
from skillyard.client.run import RunFile


def test_a_name_that_this_system_takes_is_saved(tmp_path: Path) -> None:
    assert RunFile("at/12:30.txt", "blob:1", 1, "text/plain").place(tmp_path) == tmp_path / "at" / "12:30.txt"


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a\\b", "a\nb", "", "a/.."])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadReply):
        RunFile(path, "blob:1", 1, "text/plain").place(tmp_path)
