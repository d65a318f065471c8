# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.data.workers import pl_worker_init_function as pl_worker_init_function
from poplin.seed import isolate_rng as isolate_rng
from poplin.seed import reset_seed as reset_seed
from poplin.seed import seed_everything as seed_everything
