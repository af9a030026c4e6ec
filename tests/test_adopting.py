"""docs/adopting.md: its lines of code run, one after the other, and its links lead somewhere."""

import re
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[1] / "docs" / "adopting.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_its_code_runs_to_the_end_also_under_a_bare_shard_map():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    np.testing.assert_allclose(names["params"], np.full((4, 3), 0.1), rtol=1e-6)
    assert {shard.data.shape for shard in names["params"].addressable_shards} == {(1, 3)}


def test_its_links_lead_to_files_of_the_repository():
    links = re.findall(r"\]\((\.\./[^)]+)\)", PAGE)
    assert len(links) >= 3
    for link in links:
        assert (PATH.parent / link).is_file(), link
