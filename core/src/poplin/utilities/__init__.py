"""Small public helpers, read lazily."""

from poplin.faces import lazy_face

__all__ = [
    "AttributeDict",
    "DistributedSamplerWrapper",
    "MisconfigurationException",
    "PossibleUserWarning",
    "apply_to_tensors",
    "has_iterable_dataset",
    "move_data_to_device",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "reset_seed",
    "suggested_max_num_workers",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "AttributeDict": "poplin.utilities.types:AttributeDict",
        "DistributedSamplerWrapper": "poplin.utilities.data:DistributedSamplerWrapper",
        "MisconfigurationException": "poplin.errors:MisconfigurationException",
        "PossibleUserWarning": "poplin.errors:PossibleUserWarning",
        "apply_to_tensors": "poplin.utilities.apply_func:apply_to_tensors",
        "disable_possible_user_warnings": "poplin.utilities.warnings:disable_possible_user_warnings",
        "has_iterable_dataset": "poplin.utilities.data:has_iterable_dataset",
        "move_data_to_device": "poplin.utilities.apply_func:move_data_to_device",
        "rank_zero_debug": "poplin.rank_zero:rank_zero_debug",
        "rank_zero_deprecation": "poplin.rank_zero:rank_zero_deprecation",
        "rank_zero_info": "poplin.rank_zero:rank_zero_info",
        "rank_zero_only": "poplin.rank_zero:rank_zero_only",
        "rank_zero_warn": "poplin.rank_zero:rank_zero_warn",
        "reset_seed": "poplin.seed:reset_seed",
        "suggested_max_num_workers": "poplin.utilities.data:suggested_max_num_workers",
    },
)
