"""A lazy face: seeds under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["isolate_rng", "pl_worker_init_function", "reset_seed", "seed_everything"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "isolate_rng": "poplin.seed:isolate_rng",
        "pl_worker_init_function": "poplin.data.workers:pl_worker_init_function",
        "reset_seed": "poplin.seed:reset_seed",
        "seed_everything": "poplin.seed:seed_everything",
    },
)
