"""The start page leads to every page and every example, and nowhere else."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_and_every_example_is_linked():
    linked = set(re.findall(r"\]\((?!\.\.)([^)]+)\)", (DOCS / "index.md").read_text()))
    there = {str(path.relative_to(DOCS)) for path in [*DOCS.glob("*.md"), *DOCS.glob("examples/*.py")]}
    assert linked == there - {"index.md"}
