"""On a GPU: the same bits for every number of workers, and what `exact` needs there. Skipped where there is no GPU."""

import os

import pytest
import torch
import torch.nn.functional as F
from train.jobs import Case, one_result

import worldsize
from worldsize.errors import Misuse
from worldsize.parallel import ground
from worldsize.run.pool import run_workers

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
