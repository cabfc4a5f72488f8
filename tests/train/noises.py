"""What the workers of the noise tests run: a problem whose noise scale is known, on a job and on stock DDP."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from worldsize.parallel.world import join_world
from worldsize.plan.noise import NoiseScale
from worldsize.train.job import join
from worldsize.train.meter import DdpNoiseMeter, NoiseMeter

DIMENSIONS, SIGNAL, SIGMA = 30, 0.25, 1.5
EXAMPLES = 16_000


def gradients() -> Tensor:
    """One row per example, which is the gradient of its loss, whatever the weights are."""
    generator = torch.Generator().manual_seed(8)
    return SIGNAL + SIGMA * torch.randn(EXAMPLES, DIMENSIONS, generator=generator)


def known() -> float:
    """The trace of the covariance over the square of the mean."""
    rows = gradients().double()
    return (rows.var(0).sum() / rows.mean(0).square().sum()).item()


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(DIMENSIONS))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows @ self.weights).mean()


def on_a_job(replicas: int, batch: int, every: int, fp16: bool = False) -> tuple[NoiseScale, str]:
    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if fp16 else None
    with join(model, optimizer, replicas=replicas, batch_per_replica=batch, device="cpu", scaler=scaler) as job:
        meter = NoiseMeter(job, every=every)
        for _ in job.epochs(1):
            for (rows,) in job.batches(TensorDataset(gradients())):
                job.backward(model(rows))
        return meter.result(), job.fingerprint()["weights_sha256"]


def after_an_error() -> NoiseScale:
    """The first step is given up after some of its replicas, and taken anew; all examples are alike."""
    model = Slope()
    with join(model, torch.optim.SGD(model.parameters(), 0.001), replicas=4, batch_per_replica=8, device="cpu") as job:
        meter = NoiseMeter(job, every=1)
        data = TensorDataset(gradients()[:1].repeat(320, 1))
        for turn, (rows,) in enumerate(job.batches(data)):
            if turn == 2:
                break
            job.backward(model(rows))
        for (rows,) in job.batches(data):
            job.backward(model(rows))
        return meter.result()


def on_stock_ddp(batch: int) -> NoiseScale:
    world = join_world(device="cpu")
    meter = DdpNoiseMeter(batch, every=2)
    model = DistributedDataParallel(Slope())
    model.register_comm_hook(None, meter.hook)
    rows = gradients()[world.worker :: dist.get_world_size()]
    for start in range(0, len(rows) - batch, batch):
        model.zero_grad()
        model(rows[start : start + batch]).backward()
    return meter.result()
