"""An ordinary training script on the public API, as a user would write it; runs alone and under torchrun.

    train.py FOLDER LOG DIE_AT DROPOUT

Each rank appends `step rank index...` to LOG.<rank> when a step's body ends; rank 0 prints the final weights' bytes.
"""

from __future__ import annotations

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elastic_health as eh


class Samples:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.randn(6, generator=torch.Generator().manual_seed(i))
        return x, x.sum().reshape(1).sin(), i


def main(folder: str, log: str, die_at: int, dropout: float) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    bare = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(dropout), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(bare) if dist.is_initialized() else bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    run = eh.init()
    dataset = Samples()
    stream = eh.SampleStream(len(dataset), global_batch=8, seed=7, epochs=3)
    loader = eh.Loader(dataset, stream)
    state = eh.TrainState(model=model, optimizer=optimizer, stream=stream)
    checkpoints = eh.Checkpoints(folder, state, every=5)

    with open(f"{log}.{os.environ.get('RANK', 0)}", "a") as out:
        for step, batch in run.steps(loader, checkpoints):
            x, y, indices = batch.data
            loss = (model(x) - y).square().mean() * batch.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == die_at:
                os._exit(9)  # the update was applied, but the step is not complete
            print(step, *indices.tolist(), file=out, flush=True)

    if int(os.environ.get("RANK", 0)) == 0:
        weights = torch.cat([p.detach().flatten() for p in bare.parameters()])
        torch.save(weights, f"{log}.weights")
        print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
