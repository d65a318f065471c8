"""The lazy faces: every import path that users know exists, light, and says what to install."""

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from poplin import faces
from poplin.registry import known

STUBS = runpy.run_path(str(Path(__file__).parents[2] / "core" / "generate_stubs.py"))

#: API.md's import paths that need no other package.
PATHS = {
    "poplin": "Fabric seed_everything is_wrapped disable_possible_user_warnings hookimpl lazy register __version__",
    "poplin.accelerators": "Accelerator CPUAccelerator ACCELERATOR_REGISTRY",
    "poplin.strategies": "Strategy ParallelStrategy SingleDeviceStrategy STRATEGY_REGISTRY",
    "poplin.plugins": "Precision CheckpointIO TorchCheckpointIO ClusterEnvironment",
    "poplin.plugins.precision": "Precision",
    "poplin.plugins.precision.precision": "Precision",
    "poplin.plugins.environments": "LightningEnvironment LocalEnvironment TorchElasticEnvironment ClusterEnvironment",
    "poplin.plugins.environments.lightning": "LightningEnvironment",
    "poplin.plugins.environments.torchelastic": "TorchElasticEnvironment",
    "poplin.plugins.io": "CheckpointIO TorchCheckpointIO",
    "poplin.plugins.io.torch_io": "TorchCheckpointIO",
    "poplin.plugins.collectives": "TorchCollective SingleDeviceCollective",
    "poplin.loggers": "Logger CSVLogger",
    "poplin.loggers.logger": "Logger",
    "poplin.loggers.csv_logs": "CSVLogger",
    "poplin.wrappers": "FabricModule FabricOptimizer FabricDataLoader is_wrapped _FabricModule _FabricOptimizer",
    "poplin.fabric": "Fabric",
    "poplin.utilities": "move_data_to_device rank_zero_only rank_zero_info rank_zero_warn rank_zero_deprecation "
    "AttributeDict suggested_max_num_workers DistributedSamplerWrapper has_iterable_dataset reset_seed "
    "MisconfigurationException PossibleUserWarning throughput spike Throughput ThroughputMonitor measure_flops "
    "is_shared_filesystem",
    "poplin.utilities.throughput": "Throughput ThroughputMonitor measure_flops get_available_flops",
    "poplin.utilities.spike": "SpikeDetection",
    "poplin.utilities.seed": "seed_everything reset_seed",
    "poplin.utilities.rank_zero": "rank_zero_only rank_zero_info",
    "poplin.utilities.types": "AttributeDict",
    "poplin.utilities.warnings": "PossibleUserWarning disable_possible_user_warnings",
    "poplin.utilities.apply_func": "move_data_to_device",
    "poplin.utilities.data": "AttributeDict suggested_max_num_workers has_iterable_dataset",
    "poplin.utilities.distributed": "DistributedSamplerWrapper is_shared_filesystem",
    "poplin.utilities.exceptions": "MisconfigurationException",
}


@pytest.mark.parametrize("path", PATHS)
def test_the_import_paths_of_the_api_exist(path):
    module = importlib.import_module(path)
    for name in PATHS[path].split():
        assert getattr(module, name) is not None


def test_importing_poplin_imports_no_torch():
    code = "import sys, json, poplin, poplin.strategies, poplin.plugins; print(json.dumps('torch' in sys.modules))"
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) is False


def test_submodules_of_utilities_are_there_without_being_imported():
    code = "import poplin.utilities as u; print(u.throughput.Throughput.__name__, u.spike.SpikeDetection.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["Throughput", "SpikeDetection"]


@pytest.mark.parametrize("face", known.faces())
def test_names_of_absent_packages_say_what_to_install(face):
    module = importlib.import_module(face)
    for name, home in known.classes(face).items():
        assert name in dir(module)
        try:
            getattr(module, name)
        except ImportError as error:
            assert f"pip install {home.distribution}" in str(error)  # noqa: PT017


def test_a_name_that_nobody_has_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Strateggy"):
        importlib.import_module("poplin.strategies").Strateggy
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poplin.strategies.no_such_thing")
    faces.install_deep_faces()
    assert sum(isinstance(finder, faces.DeepFaces) for finder in sys.meta_path) == 1


def test_the_stubs_are_what_the_tables_say():
    for path, text in STUBS["stubs"]().items():
        assert path.exists(), f"{path} is missing: run python core/generate_stubs.py"
        assert path.read_text() == text, f"{path} is stale: run python core/generate_stubs.py"
