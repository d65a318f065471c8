# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.registry.views import STRATEGY_REGISTRY as STRATEGY_REGISTRY
from poplin.strategies.optimizer_state import load_optimizer_state_by_name as load_optimizer_state_by_name
from poplin.strategies.optimizer_state import optimizer_state_by_name as optimizer_state_by_name
from poplin.strategies.optimizer_state import parameter_names as parameter_names
from poplin.strategies.parallel import ParallelStrategy as ParallelStrategy
from poplin.strategies.reductions import parse_reduce_op as parse_reduce_op
from poplin.strategies.single_device import SingleDeviceStrategy as SingleDeviceStrategy
from poplin.strategies.strategy import Strategy as Strategy
from poplin_cuda.strategy import DataParallelStrategy as DataParallelStrategy
from poplin_ddp.strategy import DDPStrategy as DDPStrategy
from poplin_deepspeed.strategy import DeepSpeedStrategy as DeepSpeedStrategy
from poplin_fsdp.model_parallel import ModelParallelStrategy as ModelParallelStrategy
from poplin_fsdp.strategy import FSDPStrategy as FSDPStrategy
from poplin_tpu.strategy import SingleDeviceXLAStrategy as SingleDeviceXLAStrategy
from poplin_tpu.strategy import XLAFSDPStrategy as XLAFSDPStrategy
from poplin_tpu.strategy import XLAStrategy as XLAStrategy
