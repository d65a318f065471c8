"""The page on the compliance suites lists every check and every setting."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_suites_say():
    generator = runpy.run_path(str(DOCS / "generate_compliance.py"))
    assert (DOCS / "compliance.md").read_text() == generator["page"](), "run: python docs/generate_compliance.py"
