"""What the workers of the ground tests run."""

import torch
from train.jobs import Case, build, data_of, optimizer_of

import worldsize
from worldsize.parallel import ground
from worldsize.parallel.world import join_world


def facts_and_threads() -> tuple[dict, int]:
    world = join_world()
    ground.prepare(world.device, exact=True)
    ground.check(world.device)
    ground.compare(world, ground.facts(world.device))
    return ground.facts(world.device), torch.get_num_threads()


def more_threads(sync: str) -> bool:
    """Undo, after join, what exact stands on."""
    case = Case(net="mlp", sync=sync)
    model = build(case.net)
    job = worldsize.join(model, optimizer_of(case, model), replicas=4, batch_per_replica=4, sync=sync)
    torch.set_num_threads(2)
    for x, y in job.batches(data_of(case)):
        job.backward(torch.nn.functional.cross_entropy(model(x), y))
    return True


def differ() -> None:
    """The last worker has another build of torch, so to say."""
    world = join_world()
    ground.compare(world, {"device": "cpu", "torch": "2.13" if world.worker < world.size - 1 else "2.14"})
