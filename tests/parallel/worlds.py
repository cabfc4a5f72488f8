"""What the workers of the sync tests run: stock DDP by hand, memory, sums over the world, and gradients one by one."""

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from train.jobs import Case, build, data_of, join

import worldsize
from worldsize.parallel.bucket import Bucket
from worldsize.parallel.exact import ExactSync
from worldsize.parallel.transport import Transport, transport_for
from worldsize.parallel.world import World, join_world
from worldsize.plan import tree

# ---- stock DDP, as in PyTorch's own tutorial: nothing of worldsize in it ---------------------------------------------


def stock_loop(model: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset, batch: int, epochs: int) -> None:
    ddp = DistributedDataParallel(model)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()
            optimizer.step()


def stock_weights(case: Case) -> str:
    from train.jobs import optimizer_of

    join_world()
    torch.set_num_threads(1)
    model = without_dropout(build(case.net))
    stock_loop(model, optimizer_of(case, model), data_of(case), case.batch_per_replica, case.epochs)
    return worldsize.weights_sha256(model)


def our_weights(case: Case) -> dict[str, Any]:
    """Our loop over the same, without dropout, whose random streams are ours alone."""
    job = join(case)
    without_dropout(job.model)
    for _ in job.epochs(case.epochs):
        for x, y in job.batches(data_of(case)):
            job.backward(F.cross_entropy(job.model(x), y))
    weights = {name: plain(value) for name, value in job.model.named_parameters()}
    return {"weights_sha256": worldsize.weights_sha256(job.model), "weights": weights}


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


# ---- gradients against plain PyTorch ---------------------------------------------------------------------------------


def one_gradient(case: Case, rows: dict[str, Tensor]) -> dict[str, Any]:
    """The synced gradient of the first step on these examples, weighted by how much each counts."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(rows[name])
    job = worldsize.join(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        replicas=case.replicas,
        batch_per_replica=case.batch_per_replica,
        clip_norm=case.clip_norm,
    )
    counts = "count" in rows
    data = TensorDataset(rows["x"], rows["y"], rows["count"] if counts else rows["y"])
    for x, y, weight in job.batches(data, count=(lambda x, y, weight: weight.sum()) if counts else None):
        losses = F.cross_entropy(model(x), y, reduction="none")
        job.backward((losses * weight).sum() / weight.sum() if counts else losses.mean())
    assert job.position.steps_done == 1, "one step is the whole data set"
    return {"loss": job.mean_loss(), **{name: plain(parameter.grad) for name, parameter in model.named_parameters()}}


def plain(tensor: Tensor | None) -> Any:
    """A tensor as a worker can send it."""
    return None if tensor is None else tensor.detach().numpy()


# ---- sums over the world ---------------------------------------------------------------------------------------------

SHAPES = [(3, 5), (7,)]  # a bucket each


def rows_for(replicas: int, step: int) -> Tensor:
    """A gradient of every replica."""
    generator = torch.Generator().manual_seed(100 * replicas + step)
    return torch.randn(replicas, 22, generator=generator)


def sums_by_transport(cases: list[tuple[int, int]]) -> list[list[Any]]:
    """For so many replicas, and so many with examples: what each bucket's parameter has after each of two steps."""
    world = join_world()
    transport = transport_for(world)
    assert transport.pieces == world.size
    return [_two_steps(world, transport, *case) for case in cases]


@torch.no_grad()
def _two_steps(world: World, transport: Transport, replicas: int, active: int) -> list[Any]:
    buckets = [Bucket([nn.Parameter(torch.zeros(shape))], transport.pieces) for shape in SHAPES]
    mine = [replica for replica in tree.block(replicas, world.size, world.worker) if replica < active]
    found = []
    for step in range(2):
        rows = rows_for(replicas, step)
        for bucket, columns in zip(buckets, rows.split([15, 7], dim=1), strict=True):
            (parameter,) = bucket.parameters
            bucket.begin()
            for replica in mine:
                parameter.grad = columns[replica].reshape(parameter.shape)
                bucket.push(replica)
            transport.start(bucket, tree.owned(replicas, world.size, active))
        transport.finish(buckets)
        for bucket in buckets:
            bucket.hand_over()
            found.append(plain(bucket.parameters[0].grad.clone()))
    return found


# ---- memory ----------------------------------------------------------------------------------------------------------

SIDE = 3072  # one matrix of 36 MiB: above the size from which the allocator takes and returns memory at once


def copies_in_use(replicas: int) -> float:
    """The most memory that a worker has taken over what stood before the first step, in copies of the gradient."""
    _touch_everything()
    model = nn.Linear(SIDE, SIDE, bias=False)
    job = worldsize.join(model, torch.optim.SGD(model.parameters(), 0.1), replicas=replicas, batch_per_replica=1)
    data = TensorDataset(torch.randn(4 * replicas, SIDE))
    with torch.no_grad():
        model(data.tensors[0][:1])
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in job.epochs(1):
        for (x,) in job.batches(data):
            job.backward(model(x).square().mean())
    return (_memory("VmHWM") - before) / (SIDE * SIDE * 4)


def _touch_everything() -> None:
    """Load what torch loads late, so that it is not counted."""
    model = nn.Linear(2, 2)
    job = worldsize.join(model, torch.optim.SGD(model.parameters(), 0.1), replicas=16, batch_per_replica=1)
    for (x,) in job.batches(TensorDataset(torch.randn(16, 2))):
        job.backward(model(x).square().mean())
    job.sync.close()


def _memory(line: str) -> int:
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


# ---- many replicas, types, compilers ---------------------------------------------------------------------------------


def low_precision_sum(replicas: int) -> dict[str, Tensor]:
    """The synced bf16 gradient of one step, and the gradients of its replicas."""
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    job = worldsize.join(model, torch.optim.SGD(model.parameters(), 0.0), replicas=replicas, batch_per_replica=1)
    x = torch.randn(replicas, 8, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    for (row,) in job.batches(TensorDataset(x)):
        job.backward(model(row).float().sum())
    assert model.weight.grad is not None
    return {"grad": plain(model.weight.grad.float()), "x": plain(x.float())}


# ---- rows and held gradients -----------------------------------------------------------------------------------------


def rows(replicas: int, active: int) -> list[list[float]] | None:
    """A row of each of the first replicas, where this worker has one of them; gathered twice through one group."""
    world = join_world(device="cpu")
    mine = [float(replica) for replica in tree.block(replicas, world.size, world.worker) if replica < active]
    found = None
    for _ in range(2):
        group = world.holding(replicas, active)
        if mine:
            row = torch.tensor(mine).unsqueeze(1).expand(-1, 2)
            found = world.gather_rows(row, replicas, active=active, group=group).tolist()
    return found


def held_or_not(held: bool) -> dict[str, list[float] | None]:
    """Two replicas' gradients, one of which lacks some: each pushed in its backward pass, or both held before."""
    world = join_world(device="cpu")
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("both", "one", "never")})
    model["both"].weight = model["one"].weight  # tied
    sync = ExactSync(model, world, 2, bucket_mb=1e-4)
    x = torch.randn(3, 4)
    losses = [model["both"](x).square().mean(), model["both"](model["one"](x)).square().mean()]
    sync.begin(2)
    if held:
        for replica, gradients in enumerate([sync.hold(loss) for loss in losses]):
            assert all(parameter.grad is None for parameter in model.parameters())
            sync.push(gradients, replica, last=replica == 1)
    else:
        for replica, loss in enumerate(losses):
            sync.backward(loss, replica, last=replica == 1)
    sync.finish()
    sync.close()
    world.leave()
    return {name: None if p.grad is None else p.grad.flatten().tolist() for name, p in model.named_parameters()}
