"""The accelerator, its strategy and their package against the public compliance suites.

Where there is no GPU, what can be asked without one is checked; once more, with a library in place of the driver.
"""

import torch

from poplin.testing import AcceleratorCompliance, PackagingCompliance, StrategyCompliance


class TestCUDA(AcceleratorCompliance):
    name = "cuda"


class TestDataParallel(StrategyCompliance):
    name = "dp"
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"


class TestPackage(PackagingCompliance):
    distribution = "poplin-cuda"
