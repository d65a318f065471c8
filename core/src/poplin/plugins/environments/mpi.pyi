# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin_clusters.mpi import MPIEnvironment as MPIEnvironment
