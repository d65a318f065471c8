"""The reference of the plugin API says what the code says."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_docstrings_say():
    generator = runpy.run_path(str(DOCS / "generate_plugin_api.py"))
    assert (DOCS / "plugin-api.md").read_text() == generator["page"](), "run: python docs/generate_plugin_api.py"
