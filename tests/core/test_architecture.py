"""The rules that keep the core small and the arrows pointing one way."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "poplin"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins*/*/pyproject.toml"))

BACKEND_WORDS = re.compile(
    r"(?<![a-z])(cuda|mps|xla|tpu|ddp|fsdp|deepspeed|nccl|habana|hpu|xpu|npu)(?![a-z])", re.IGNORECASE
)
#: FSDPStrategy reads as FSDP Strategy, torchXla as torch Xla.
WORD_BORDER = re.compile(r"(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")

#: What a plugin may import of the core: the names of these modules.
PUBLIC_FACES = {
    "poplin",
    "poplin.accelerators",
    "poplin.checkpoint",
    "poplin.environments",
    "poplin.errors",
    "poplin.launchers",
    "poplin.loggers",
    "poplin.precision",
    "poplin.registry",
    "poplin.strategies",
    "poplin.testing",
    "poplin.utilities",
    "poplin.wrappers",
}


def texts(tree):
    """Identifiers, imports and strings of a module, with their lines; no docstrings."""
    with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, with_docstring) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield line, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.keyword(arg=str(text)):
                yield line, text
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                yield line, text
            case ast.alias(name=text, asname=other):
                yield line, f"{text} {other or ''}"
            case ast.ImportFrom(module=str(text)):
                yield line, text


def names_a_backend(text):
    return BACKEND_WORDS.search(WORD_BORDER.sub(" ", text.replace("_", " "))) is not None


@pytest.mark.parametrize("text", ["DDPStrategy", "find_usable_cuda_devices", "torch.cuda", "xla", "is_mps"])
def test_a_backends_name_is_seen_in_any_spelling(text):
    assert names_a_backend(text)


@pytest.mark.parametrize("text", ["pandas", "compress", "cudagraphs", "exploited", "input"])
def test_a_longer_word_is_no_backends_name(text):
    assert not names_a_backend(text)


def test_the_core_names_no_backend():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}"
        for path in sorted(CORE.rglob("*.py"))
        for line, text in texts(ast.parse(path.read_text()))
        if names_a_backend(text)
    ]
    assert not found, "\n".join(found)


def test_only_one_data_file_of_the_core_names_backends():
    others = [path for path in CORE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    found = {str(path.relative_to(CORE)) for path in others if names_a_backend(path.read_text())}
    allowed = {"registry/known.toml"} | {name for name in found if name.endswith(".pyi")}
    assert found <= allowed


def test_importing_poplin_imports_no_torch():
    script = """
import sys
import poplin
import poplin.accelerators, poplin.checkpoint, poplin.cli, poplin.environments, poplin.errors, poplin.launchers
import poplin.loggers, poplin.plugins, poplin.precision, poplin.registry, poplin.strategies, poplin.wrappers
print([name for name in ("torch", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_import_contracts_hold():
    # the plugins with large libraries are not installed where the ordinary tests run
    sources = os.pathsep.join(str(path) for path in ROOT.glob("plugins*/*/src"))
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("poplin", exclude_type_checking_imports=True, cache_dir=None)


def test_no_modules_import_each_other_in_a_circle(graph):
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the modules


def test_only_faces_and_the_command_line_import_fabric(graph):
    importers = graph.find_modules_that_directly_import("poplin.fabric")
    assert {name for name in importers if not name.startswith(("poplin.cli.", "poplin.testing."))} == set()


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_only_public_faces(folder):
    found = []
    for path in sorted((folder / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        only_types = {
            id(node)
            for branch in ast.walk(tree)
            if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
            for node in ast.walk(branch)
        }
        for node in ast.walk(tree):
            modules = []
            if id(node) in only_types:
                continue  # the type of what `bind` gets, for example
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            found += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
                for module in modules
                if module.partition(".")[0] == "poplin" and module not in PUBLIC_FACES
            ]
    assert not found, "\n".join(found)


def test_the_import_contracts_know_every_plugin():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    packages = {path.name for folder in PLUGINS for path in (folder / "src").iterdir() if path.suffix == ""}
    assert set(settings["root_packages"]) == {"poplin"} | packages
    for contract in settings["contracts"]:
        if contract["id"] == "plugins-use-public-faces":
            assert set(contract["source_modules"]) == packages
            break
    else:
        raise AssertionError("there is no contract 'plugins-use-public-faces'")
