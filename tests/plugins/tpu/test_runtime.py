"""Which runtime serves TPUs here, and why none does: with distributions made for it, in processes that see them."""

import sys
import time

import pytest
import torch

from poplin import Fabric
from poplin.errors import PoplinError
from poplin_tpu import runtime
from poplin_tpu.accelerator import TPUAccelerator, XLAAccelerator

#: A module that must not be imported.
FORBIDDEN = {"__init__.py": "raise AssertionError('imported, and nobody had asked for it')"}
#: What torch_xla for another torch does at its import.
BROKEN = {"__init__.py": "raise ImportError('_XLAC.so: undefined symbol: _ZN5torch4lazy')"}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    for name in ("PJRT_DEVICE", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        monkeypatch.delenv(name, raising=False)
    runtime._probe.cache_clear()
    yield
    runtime._probe.cache_clear()


@pytest.fixture
def here(tmp_path, install, monkeypatch):
    """``here(package, …)`` installs into this process's path, and that of the processes it starts."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    return install


@pytest.fixture
def bus(tmp_path, monkeypatch):
    """``bus((vendor, class), …)`` puts devices on the PCI bus."""
    monkeypatch.setattr(runtime, "_PCI", tmp_path / "pci")

    def put(*devices):
        for number, (vendor, kind) in enumerate(devices):
            folder = tmp_path / "pci" / f"0000:00:{number:02}.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            if kind:
                (folder / "class").write_text(f"{kind}\n")

    return put


TPU_CHIP, NETWORK_CARD, DISK, OTHER = (
    *(("0x1ae0", "0x120000"), ("0x1ae0", "0x020000"), ("0x1ae0", "0x010802")),
    ("0x10de", "0x030200"),
)


def test_nothing_is_installed():
    assert TPUAccelerator.availability() == (
        False,
        "TorchTPU: the package torch_tpu is not installed; torch_xla: the package torch_xla is not installed",
    )
    assert XLAAccelerator.availability() == (False, "the package torch_xla is not installed")
    for name in ("tpu", "xla"):
        with pytest.raises(PoplinError, match="torch_xla is not installed"):
            Fabric(accelerator=name)
    with Fabric(devices=1) as fabric:
        assert fabric.device.type == "cpu"
        assert "torch_xla is not installed" in fabric.explain()


def test_torch_xla_for_another_torch_is_not_imported(here):
    here("torch_xla", version="2.1.0", modules=FORBIDDEN)
    for accelerator in (TPUAccelerator, XLAAccelerator):
        available, reason = accelerator.availability()
        assert not available
        assert "torch_xla 2.1.0 is made for torch 2.1, and this is" in reason
        assert "pip install" in reason


def test_a_broken_torch_xla_is_a_reason_only_when_asked_for(here):
    here("torch_xla", modules=BROKEN)
    assert TPUAccelerator.availability() == (
        False,
        "TorchTPU: the package torch_tpu is not installed; "
        f"torch_xla: torch_xla {torch.__version__[:4]}.0 is installed, and no TPU chip is on the PCI bus",
    )
    available, reason = XLAAccelerator.availability()
    assert not available
    assert "can't be imported: ImportError: _XLAC.so: undefined symbol" in reason
    with pytest.raises(PoplinError, match="undefined symbol"):
        Fabric(accelerator="xla")


@pytest.mark.parametrize("package", ["torch_xla", "torch_tpu"])
def test_a_package_without_metadata_is_told_of(here, tmp_path, package):
    (tmp_path / "site" / package).mkdir()
    (tmp_path / "site" / package / "__init__.py").write_text(FORBIDDEN["__init__.py"])
    available, reason = TPUAccelerator.availability()
    assert not available
    assert f"{package} of unknown version" in reason


def test_which_chips_count(bus):
    assert runtime.chips() == (False, "no TPU chip is on the PCI bus")
    bus(NETWORK_CARD, DISK, OTHER, TPU_CHIP, TPU_CHIP, ("0x1ae0", ""))
    assert runtime.chips() == (True, "2 TPU chip(s) are on the PCI bus")


def test_torch_xla_is_asked_in_another_process_where_there_is_a_chip(here, bus):
    bus(TPU_CHIP)
    answers = {"device_type": "'TPU'", "global_runtime_device_count": "4"}
    here("torch_xla", modules={"runtime.py": "\n".join(f"def {k}(): return {v}" for k, v in answers.items())})
    choice = runtime.choose()
    assert (choice.device_type, choice.usable) == ("xla", True)
    assert "finds 4 TPU device(s)" in choice.reason
    assert "TorchTPU: the package torch_tpu is not installed" in choice.reason
    assert TPUAccelerator.device_type == "xla"
    assert TPUAccelerator.collective_backend is None
    assert "torch_xla" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def device_type(): return 'CPU'\ndef global_runtime_device_count(): return 1", "finds CPU and no TPU"),
        ("raise RuntimeError('the chips are in use')", "fails: RuntimeError: the chips are in use"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "fails: "),
    ],
)
def test_what_torch_xla_says_instead(here, bus, source, reason):
    bus(TPU_CHIP)
    here("torch_xla", modules={"runtime.py": source})
    choice = runtime.choose()
    assert not choice.usable
    assert reason in choice.reason


def test_a_runtime_that_hangs_is_left_alone_after_a_while(here, bus, monkeypatch):
    bus(TPU_CHIP)
    monkeypatch.setattr(runtime, "PROBE_SECONDS", 1.0)
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    here("torch_xla", modules={"runtime.py": f"{child}; time.sleep(60)"})
    begun = time.monotonic()
    assert "did not say within 1 s" in runtime.choose().reason
    assert time.monotonic() - begun < 45  # it would sleep 60 s
    assert "did not say within 1 s" in runtime.choose().reason  # and is not asked again


@pytest.mark.parametrize(("device", "asked"), [("CPU", False), ("cpu", False), ("TPU", True), ("", True)])
def test_pjrt_device_is_heeded(here, bus, monkeypatch, device, asked):
    bus(TPU_CHIP)
    monkeypatch.setenv("PJRT_DEVICE", device)
    here("torch_xla", modules={"runtime.py": "raise RuntimeError('asked')"})
    reason = runtime.torch_xla_on_tpu().reason
    assert ("asked" in reason) is asked
    assert ("is told to use another device (PJRT_DEVICE=CPU)" in reason) is not asked


def test_torch_xla_is_asked_without_a_chip_on_the_bus_where_the_user_says_so(here, bus, monkeypatch):
    here("torch_xla", modules={"runtime.py": "raise RuntimeError('asked')"})
    assert "asked" not in runtime.torch_xla_on_tpu().reason
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    assert "asked" in runtime.torch_xla_on_tpu().reason


def test_torch_tpu_that_can_have_no_device_says_why(here, bus, monkeypatch):
    here("torch_tpu", version="0.2.0", modules=FORBIDDEN)
    assert "torch_tpu 0.2.0 is installed, and no TPU chip is on the PCI bus" in runtime.choose().reason
    bus(TPU_CHIP)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert "torch has not loaded it (TORCH_DEVICE_BACKEND_AUTOLOAD=0)" in runtime.choose().reason
    monkeypatch.setattr(torch, "__version__", "2.10.0+cpu")
    assert "torch_tpu 0.2.0 needs torch 2.11 or newer, and this is 2.10.0+cpu" in runtime.choose().reason


def test_listing_and_running_on_the_cpu_import_neither(install, run):
    for package in ("torch_xla", "torch_tpu"):
        install(package, version="2.1.0", modules=FORBIDDEN)
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert "single_xla" in run("-m", "poplin", "plugins", **off).stdout
    program = (
        "import sys; from poplin import Fabric; Fabric(devices=1).close(); from poplin.strategies import XLAStrategy;"
        "assert not {'torch_xla', 'torch_tpu'} & set(sys.modules)"
    )
    run("-c", program, **off)


@pytest.fixture(scope="module")
def two_runtimes(tmp_path_factory, install_into, start, programs):
    """What is chosen where both are installed, and TorchTPU has devices."""
    folder = tmp_path_factory.mktemp("runtimes")
    install_into(folder / "site", "torch_xla", modules=FORBIDDEN)
    install_into(folder / "site", "torch_tpu", version="0.2.0")
    return start(folder, programs / "choices.py"), lambda *words, **options: start(folder, *words, **options)


def test_torch_tpu_goes_first(two_runtimes):
    choices, _ = two_runtimes
    assert choices["auto"] == ["tpu", "tpu:0"]
    assert choices["backend"] == "tpu_dist"
    assert "torch_tpu 0.2.0 reports 2 TPU device(s)" in choices["explain"]
    assert choices["imported"] == []


@pytest.mark.parametrize(
    ("asked", "devices", "chosen"),
    [
        ("auto", 1, "SingleDeviceStrategy"),
        ("auto", 2, "DDPStrategy"),
        ("xla", 2, "DDPStrategy"),
        ("xla_fsdp", 2, "FSDPStrategy"),
        ("single_xla", 1, "SingleDeviceStrategy"),
        ("single_tpu", 1, "SingleDeviceStrategy"),
        ("fsdp", 2, "FSDPStrategy"),
        ("ddp", 2, "DDPStrategy"),
    ],
)
def test_strategies_of_the_other_runtime_lead_to_the_general_ones(two_runtimes, asked, devices, chosen):
    choices, _ = two_runtimes
    strategy, redirected = choices["strategies"][f"{asked} {devices}"]
    assert strategy == chosen
    assert redirected is ("xla" in asked or asked == "single_tpu")


def test_what_does_not_fit_torch_tpu(two_runtimes):
    choices, _ = two_runtimes
    assert "runs on torch_xla's devices" in choices["xla_spmd"]
    assert "accelerator 'tpu' has 2 device(s)" in choices["three"]
    assert "in a circle" in choices["circle"]


def test_processes_of_torch_tpu_find_its_variables(two_runtimes):
    choices, _ = two_runtimes
    addresses = {"TORCH_TPU_SLICEBUILDER_ADDRESSES": "localhost:8070,localhost:8071"}
    assert choices["variables"] == {**addresses, "TORCH_TPU_TOPOLOGY": "2,1,1"}
    assert choices["variables set"] == addresses
    assert "failed: ValueError: set_tpu_launch_env(): expected TPU devices, got none" in choices["variables fail"]
    assert "`poplin run --accelerator=tpu`" in choices["unprepared"]


@pytest.mark.slow
def test_the_command_line_gives_them_to_each_process(two_runtimes, tmp_path):
    _, start = two_runtimes
    script = tmp_path / "script.py"
    # in one write: the lines of two processes must not run into each other
    script.write_text(
        "import os, sys; sys.stdout.write(f\"FOUND {os.environ['TORCH_TPU_SLICEBUILDER_ADDRESSES']}\\n\")"
    )
    done = start("-m", "poplin", "run", "--accelerator=tpu", "--devices=2", script)
    assert done.stdout.splitlines() == ["FOUND localhost:8070,localhost:8071"] * 2


def test_doctor_and_explain_say_that_torch_itself_imports_it(two_runtimes):
    _, start = two_runtimes
    line = "torch's own: `import torch` loads the backend 'torch_tpu' = torch_tpu:autoload of torch_tpu 0.2.0"
    told = start("-m", "poplin", "explain").stdout
    assert line in told
    assert "--no-torch-autoload" in told
    assert told.splitlines()[0].split()[:2] == ["accelerator", "tpu"]
    assert line in start("-m", "poplin", "doctor").stdout


@pytest.mark.slow
def test_the_program_without_autoload_has_no_tpu(two_runtimes, tmp_path):
    _, start = two_runtimes
    script = tmp_path / "script.py"
    script.write_text("from poplin import Fabric; print(Fabric().device)")
    done = start("-m", "poplin", "run", "--no-torch-autoload", "--devices=1", script)
    assert done.stdout.splitlines()[-1] == "cpu"
