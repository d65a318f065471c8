# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.errors import MisconfigurationException as MisconfigurationException
from poplin.errors import PossibleUserWarning as PossibleUserWarning
from poplin.rank_zero import rank_zero_debug as rank_zero_debug
from poplin.rank_zero import rank_zero_deprecation as rank_zero_deprecation
from poplin.rank_zero import rank_zero_info as rank_zero_info
from poplin.rank_zero import rank_zero_only as rank_zero_only
from poplin.rank_zero import rank_zero_warn as rank_zero_warn
from poplin.seed import reset_seed as reset_seed
from poplin.utilities.apply_func import apply_to_tensors as apply_to_tensors
from poplin.utilities.apply_func import move_data_to_device as move_data_to_device
from poplin.utilities.data import DistributedSamplerWrapper as DistributedSamplerWrapper
from poplin.utilities.data import has_iterable_dataset as has_iterable_dataset
from poplin.utilities.data import suggested_max_num_workers as suggested_max_num_workers
from poplin.utilities.types import AttributeDict as AttributeDict
from poplin.utilities.warnings import disable_possible_user_warnings as disable_possible_user_warnings
