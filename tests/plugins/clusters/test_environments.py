"""Who a process is, by the variables that each scheduler sets."""

import os
import signal
import socket

import pytest

from poplin import registry
from poplin.environments import TorchrunEnvironment
from poplin.errors import ContradictionError, SelectionError, UsageError
from poplin_clusters.kubeflow import KubeflowEnvironment
from poplin_clusters.lsf import LSFEnvironment
from poplin_clusters.mpi import MPIEnvironment
from poplin_clusters.slurm import SLURMEnvironment

PREFIXES = (
    "SLURM_",
    "LSB_",
    "JSM_",
    "OMPI_",
    "PMI",
    "MV2_",
    "MPI_",
    "KUBERNETES_",
    "TORCHELASTIC_",
    "MASTER_",
    "LOCAL_",
)
NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "ENVIRONMENT")

#: As `srun -n 4 --ntasks-per-node=2` of SLURM 22 sets them, for rank 3.
SLURM = {
    "SLURM_JOB_ID": "10042",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_NODELIST": "node[01-04]",
}
LSF = {
    "LSB_JOBID": "1234",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
KUBEFLOW = {
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "4",
    "RANK": "3",
}


@pytest.fixture
def put(monkeypatch):
    for name in list(os.environ):
        if name.startswith(PREFIXES) or name in NAMES:
            monkeypatch.delenv(name)

    def change(variables, **more):
        for name, value in {**variables, **more}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return change


def who(environment):
    return environment.global_rank(), environment.local_rank(), environment.node_rank(), environment.world_size()


def test_all_four_are_found_by_name_and_asked_for_the_role():
    offered = set(registry.names("environments"))
    assert {"slurm", "lsf", "mpi", "kubeflow"} <= offered
    candidates = {candidate.name for candidate in registry.role_candidates("environments", "auto")}
    assert {"slurm", "lsf", "mpi", "kubeflow", "torchrun", "local"} <= candidates


@pytest.mark.parametrize("kind", [SLURMEnvironment, LSFEnvironment, MPIEnvironment, KubeflowEnvironment])
def test_a_bare_process_is_none_of_them(put, kind):
    put({})
    assert not kind.detect()
    assert kind().creates_processes_externally


def test_the_innermost_launcher_has_the_highest_priority():
    order = [KubeflowEnvironment, SLURMEnvironment, MPIEnvironment, LSFEnvironment, TorchrunEnvironment]
    assert sorted(order, key=lambda kind: kind.priority) == order


# --- SLURM


def test_slurm_ranks(put):
    put(SLURM)
    environment = SLURMEnvironment()
    assert environment.detect()
    environment.set_world_size(9)
    environment.set_global_rank(9)
    assert who(environment) == (3, 1, 1, 4)
    assert environment.local_world_size() == 2
    assert environment.main_address == "node03"  # of this step, and not of the whole job
    assert environment.main_port == 15042
    environment.validate_settings(2, 2)


def test_slurm_steps_that_run_together_have_ports_of_their_own(put):
    ports = set()
    for step in range(4):
        put(SLURM, SLURM_STEP_ID=str(step))
        ports.add(SLURMEnvironment().main_port)
    assert len(ports) == 4
    put(SLURM, MASTER_PORT="1234", MASTER_ADDR="me")
    assert (SLURMEnvironment().main_address, SLURMEnvironment().main_port) == ("me", 1234)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("alpha,beta,gamma", "alpha"),
        ("alpha beta", "alpha"),
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.[100-110]", "1.2.3.100"),
        ("node[01-03,5],other", "node01"),
        ("node[003]", "node003"),
        ("gpu[7-9]-ib", "gpu7-ib"),
        ("r[1-2]n[08-12]", "r1n08"),
        (" a[1-2] , b", "a1"),
    ],
)
def test_slurm_the_first_host_of_a_list(nodes, first):
    assert SLURMEnvironment.resolve_root_node_address(nodes) == first


def test_slurm_a_whole_list():
    from poplin_clusters.hostlist import expand

    assert expand("n[08-11,2],x,r[1-2]c[1-2]") == [
        "n08", "n09", "n10", "n11", "n2", "x", "r1c1", "r1c2", "r2c1", "r2c2",
    ]  # fmt: skip
    assert expand("") == []


@pytest.mark.parametrize("nodes", ["", "n[1-2", "n1-2]", "n[a-b]", "n[2-1]", "n[[1]]"])
def test_slurm_a_list_that_can_not_be_read(nodes):
    with pytest.raises(SelectionError, match="can't be read"):
        SLURMEnvironment.resolve_root_node_address(nodes)


def test_slurm_one_task_and_two_devices_is_an_error_that_says_what_to_do(put):
    put(SLURM, SLURM_NTASKS="1", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1", SLURM_STEP_TASKS_PER_NODE="1")
    with pytest.raises(
        ContradictionError, match=r"SLURM_NTASKS=1.*srun --nodes=1 --ntasks-per-node=2.*plugins='local'"
    ):
        SLURMEnvironment().validate_settings(2, 1)
    put({name: None for name in SLURM if "STEP" in name}, SLURM_NTASKS="1")  # a batch script that doesn't use srun
    with pytest.raises(ContradictionError, match="SLURM_NTASKS=1"):
        SLURMEnvironment().validate_settings(2, 1)


def test_slurm_other_contradictions(put):
    put(SLURM)
    with pytest.raises(ContradictionError, match="num_nodes=1 was asked for, and SLURM runs this step on 2"):
        SLURMEnvironment().validate_settings(4, 1)
    put(SLURM, SLURM_STEP_TASKS_PER_NODE="3,1")
    with pytest.raises(ContradictionError, match=r"\[3, 1\] tasks on its nodes"):
        SLURMEnvironment().validate_settings(2, 2)


def test_slurm_a_batch_script_without_srun_is_alone(put):
    put({name: value for name, value in SLURM.items() if "STEP" not in name}, ENVIRONMENT="BATCH", SLURM_NODEID="0")
    with pytest.raises(SelectionError, match="without srun, so it is the only process"):
        SLURMEnvironment().validate_settings(2, 2)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"},
        {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "interactive"},
        {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "x", "SLURM_PROCID": "0", "SLURM_PTY_PORT": "4444"},  # srun --pty
        {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "mine"},  # salloc --job-name=mine
        {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
    ],
)
def test_slurm_a_shell_for_a_person_is_no_task(put, variables):
    put(variables)
    assert not SLURMEnvironment.detect()


def test_slurm_a_step_inside_an_interactive_allocation_is_one(put):
    put(SLURM, SLURM_JOB_NAME="interactive")
    assert SLURMEnvironment.detect()


def test_slurm_outside_of_a_step_it_says_so(put):
    put({})
    with pytest.raises(SelectionError, match=r"SLURM_PROCID is not set.*srun"):
        SLURMEnvironment().global_rank()


def test_slurm_requeue(put, tmp_path, monkeypatch):
    put({})
    with pytest.raises(UsageError, match="no SLURM job"):
        SLURMEnvironment().requeue()
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    put(SLURM)
    SLURMEnvironment().requeue()
    put(SLURM, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    SLURMEnvironment().requeue()
    assert (tmp_path / "calls").read_text().splitlines() == ["requeue 10042", "requeue 7_3"]
    command.write_text("#!/bin/sh\necho 'Job is not eligible' >&2\nexit 1\n")
    with pytest.raises(UsageError, match="Job is not eligible"):
        SLURMEnvironment().requeue()


def test_slurm_gives_notice_by_sigterm_and_sigusr1():
    assert set(SLURMEnvironment.preemption_signals) == {signal.SIGTERM, signal.SIGUSR1}


# --- LSF


def test_lsf(put, tmp_path):
    here = socket.gethostname()
    hosts = tmp_path / "hosts"
    hosts.write_text(f"launch\nfirst\nfirst\n{here}\n{here}\n")
    put(LSF, LSB_DJOB_RANKFILE=str(hosts))
    environment = LSFEnvironment()
    assert environment.detect()
    assert who(environment) == (3, 1, 1, 4)
    assert (environment.main_address, environment.main_port) == ("first", 11234)
    environment.validate_settings(2, 2)
    with pytest.raises(ContradictionError, match=r"make 4.*started 4, 2 of them on this node"):
        environment.validate_settings(4, 1)
    with pytest.raises(ContradictionError, match="jsrun -n 8 -r 4"):
        environment.validate_settings(4, 2)
    hosts.write_text("one\none\ntwo\ntwo\n")
    assert environment.main_address == "one"  # here no node is the job's script's alone
    with pytest.raises(SelectionError, match="is not among those of the job"):
        environment.node_rank()


def test_lsf_without_a_list_of_hosts(put):
    put(LSF)
    with pytest.raises(SelectionError, match="Set MASTER_ADDR"):
        _ = LSFEnvironment().main_address
    put(LSF, LSB_DJOB_RANKFILE="/nowhere/hosts")
    with pytest.raises(SelectionError, match="/nowhere/hosts can't be read"):
        _ = LSFEnvironment().main_address
    put(LSF, MASTER_ADDR="me")
    assert LSFEnvironment().main_address == "me"


# --- MPI


@pytest.mark.parametrize(
    "variables",
    [
        OPEN_MPI,
        {name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()},
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
    ],
)
def test_mpi_in_each_dialect(put, variables):
    put(variables, MASTER_ADDR="me", MASTER_PORT="1234")
    environment = MPIEnvironment()
    assert environment.detect()
    assert who(environment) == (3, 1, 0, 4)
    assert (environment.main_address, environment.main_port) == ("me", 1234)
    environment.validate_settings(4, 1)
    with pytest.raises(ContradictionError, match=r"make 2 process.*mpirun has started 4.*devices=4"):
        environment.validate_settings(2, 1)


def test_mpi_one_process_and_srun_are_not_mpi(put):
    put(OPEN_MPI, OMPI_COMM_WORLD_SIZE="1", OMPI_COMM_WORLD_RANK="0")
    assert not MPIEnvironment.detect()
    put(dict.fromkeys(OPEN_MPI))
    put(SLURM, PMI_RANK="3", PMI_SIZE="4")
    assert not MPIEnvironment.detect()
    with pytest.raises(SelectionError, match="not started by mpirun"):
        MPIEnvironment().global_rank()


# --- Kubeflow


def test_kubeflow(put):
    put(KUBEFLOW)
    environment = KubeflowEnvironment()
    assert environment.detect()
    assert who(environment) == (3, 0, 3, 4)
    assert (environment.main_address, environment.main_port) == ("job-master-0", 23456)
    environment.validate_settings(1, 4)
    with pytest.raises(ContradictionError, match=r"4 pod\(s\).*devices=1 and num_nodes=4"):
        environment.validate_settings(4, 1)


def test_kubeflow_torchrun_in_a_pod_is_not_the_pod(put):
    put(KUBEFLOW, LOCAL_RANK="0", GROUP_RANK="3", LOCAL_WORLD_SIZE="1")
    assert not KubeflowEnvironment.detect()


# --- the selection


def test_torchrun_inside_a_job_step_wins_and_the_trace_says_so(put):
    from poplin import Fabric

    put(SLURM, SLURM_NTASKS="1", SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    put(torchrun, GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")
    with Fabric(accelerator="cpu", devices=1) as fabric:
        text = fabric.explain()
    assert "environment    torchrun" in text
    assert "slurm (poplin-clusters" in text


def test_a_contradiction_leaves_nothing_behind(put):
    from poplin import Fabric

    put(SLURM, SLURM_NTASKS="1", SLURM_STEP_NUM_TASKS="1")
    before = dict(os.environ), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SelectionError, match="SLURM has started 1"):
        Fabric(accelerator="cpu", devices=2, strategy="ddp")
    assert (dict(os.environ), signal.getsignal(signal.SIGTERM)) == before
