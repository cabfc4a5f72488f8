"""On a GPU: the same bits for every number of workers, and what `exact` needs there. Skipped where there is no GPU."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallel import norms
from train import trials
from train.jobs import Case, one_result, train, train_all

import worldsize
from worldsize.errors import Misuse, NotFinite
from worldsize.parallel import ground, world
from worldsize.run.pool import run_workers
from worldsize.train.loop import make_plan
from worldsize.train.settings import Run

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no CUDA device on this machine")]

CASES = [
    Case(net=net, optimizer=optimizer, replicas=replicas, epochs=3)
    for net, optimizer, replicas in (("conv", "sgd", 4), ("wrn", "adamw", 6), ("transformer", "adamw", 8))
]


def test_a_run_repeats_bit_for_bit():
    assert one_result(CASES, workers=[1, 1])


@pytest.mark.skipif(GPUS < 2, reason="two workers need two GPUs")
def test_all_numbers_of_workers_give_one_hash():
    one_result([*CASES, Case(net="odd", replicas=7)], workers=range(1, min(GPUS, 4) + 1))


@contextlib.contextmanager
def on_the_first_gpu() -> Iterator[None]:
    """All workers compute on one GPU, in a group that they make themselves: NCCL wants a GPU each, gloo does not."""
    place = world._given
    if place.size > 1:
        store = dist.FileStore(place.meet.removeprefix("file://"), place.size)
        dist.init_process_group("gloo", store=store, rank=place.worker, world_size=place.size)
    yield
    assert world.current().device == torch.device("cuda", 0)
    if place.size > 1:
        dist.destroy_process_group()


def train_on_the_first_gpu(cases: list[Case]) -> list[dict[str, Any]]:
    with on_the_first_gpu():
        return train_all(cases)


def normalise_on_the_first_gpu(sizes: list[int], whole_net: bool) -> dict[str, torch.Tensor]:
    with on_the_first_gpu():
        return norms.part(sizes, True, whole_net, "cuda")


@pytest.mark.parametrize("whole_net", [False, True])
@pytest.mark.parametrize("sizes", [[6, 6], [5, 1, 2, 3]])
def test_workers_that_share_a_gpu_have_the_norm_of_one_big_batch(sizes, whole_net):
    parts = run_workers(normalise_on_the_first_gpu, sizes, whole_net, workers=len(sizes), limit_s=120)
    norms.check(parts, sizes, True, whole_net)


def test_replicas_that_need_each_other_on_one_worker_are_refused_on_a_gpu():
    with pytest.raises(Misuse, match="GPU"):
        make_plan(Run(norm="sync", replicas=2, device="cuda"), 1)


def test_workers_that_share_a_gpu_give_one_hash():
    cases = [*CASES, Case(net="odd", replicas=7), Case(net="conv", precision="bf16", device="cuda", replicas=6)]
    alone, *others = (run_workers(train_on_the_first_gpu, cases, workers=size, limit_s=300) for size in (1, 2, 3, 4))
    for found in others:
        assert all(theirs == alone[0] for theirs in found)


def test_gradients_on_the_gpu_are_those_of_the_cpu():
    """In float64, to the last few bits: other kernels, the same arithmetic."""
    case = Case(net="smooth", weights="float64", replicas=5)
    (on_gpu,), (on_cpu,) = (run_workers(last_losses, case, device, workers=1) for device in ("cuda", "cpu"))
    assert on_gpu == pytest.approx(on_cpu, rel=1e-10)


def last_losses(case: Case, device: str) -> list[float]:
    return train(replace(case, device=device))["losses"]


def test_a_loss_that_is_not_finite_is_named_though_no_step_waits_for_it():
    with pytest.raises(NotFinite, match="the loss is nan at step 3, replica 2, worker 0; "):
        run_workers(trials.diverge, 3, 2, workers=1)


def settings_of_exact() -> dict[str, bool]:
    _small_job()
    return {
        "workspace": os.environ["CUBLAS_WORKSPACE_CONFIG"] in ground.WORKSPACES,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "no benchmark": not torch.backends.cudnn.benchmark,
        "no tf32": not (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32),
    }


def test_exact_sets_what_it_needs():
    (found,) = run_workers(settings_of_exact, workers=1)
    assert all(found.values()), found


def train_after(change: str) -> None:
    job, model, data = _small_job()
    if change == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    elif change == "benchmark":
        torch.backends.cudnn.benchmark = True
    else:
        torch.use_deterministic_algorithms(False)
    for x, y in job.batches(data):
        job.backward(F.cross_entropy(model(x), y))


@pytest.mark.parametrize(("change", "words"), [("tf32", "TF32"), ("benchmark", "benchmark"), ("algorithms", "undone")])
def test_what_is_undone_after_join_is_refused(change: str, words: str):
    with pytest.raises(Misuse, match=rf"`exact` cannot hold on this GPU: .*{words}"):
        run_workers(train_after, change, workers=1)


def join_too_late() -> None:
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.zeros(1, device="cuda")
    _small_job()


def test_a_gpu_that_was_used_before_join_is_refused():
    with pytest.raises(Misuse, match="before the GPU is first used"):
        run_workers(join_too_late, workers=1)


def _small_job() -> tuple[worldsize.Job, torch.nn.Module, torch.utils.data.TensorDataset]:
    model = torch.nn.Linear(8, 4)
    job = worldsize.join(model, torch.optim.SGD(model.parameters(), 0.1), replicas=2, batch_per_replica=4)
    data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.zeros(16, dtype=torch.long))
    return job, model, data
