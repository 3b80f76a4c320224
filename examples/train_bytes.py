"""Train a small byte-level GPT on the source text of the running interpreter's standard library.

    python examples/train_bytes.py                                              one process
    torchrun --nproc-per-node=2 examples/train_bytes.py                         stock torchrun
    torchrun --rdzv-backend=healthy-etcd --nproc-per-node=2 examples/train_bytes.py     with elastic-health

The script is the same in all three.  Lines that end in `# eh` are what elastic-health asks of a training loop.

Document number i is bytes [i * LENGTH, (i + 1) * LENGTH] of all files in order of their path, so that everyone who runs
the same Python trains on the same documents.  With SAMPLE_LOG_DIR in the environment each process that fetches samples
appends their numbers to a file of its own there, in the order of fetching; `prove.py` recomputes from them what was used.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import elastic_health as eh

LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
SEED = 7


class Documents:
    """The first `count` windows of LENGTH bytes (None: all), each with the byte after it."""

    def __init__(self, count: int | None, log_dir: str | None = os.environ.get("SAMPLE_LOG_DIR")) -> None:
        text = standard_library(None if count is None else count * LENGTH + 1)
        self.bytes = torch.frombuffer(text, dtype=torch.uint8)
        self.count = (len(text) - 1) // LENGTH if count is None else count
        if self.count * LENGTH >= len(text):
            raise SystemExit(f"expected {count} documents of {LENGTH} bytes; the standard library has {(len(text) - 1) // LENGTH}")
        self.log_dir, self.log, self.owner = log_dir, -1, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.log_dir:
            self.write_down(i)
        return self.bytes[i * LENGTH : (i + 1) * LENGTH + 1].long()

    def write_down(self, i: int) -> None:
        if self.owner != os.getpid():  # a DataLoader worker is another process than the one that made the data set
            name = f"gen-{os.environ.get('ELASTIC_HEALTH_GENERATION', '0')}.rank-{os.environ.get('RANK', '0')}.pid-{os.getpid()}"
            self.log, self.owner = os.open(f"{self.log_dir}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), os.getpid()
        os.write(self.log, f"{i}\n".encode())  # unbuffered: it is there even if this process is killed right after


def standard_library(size: int | None) -> bytearray:
    """Source files one after the other, in order of their path, cut after `size` bytes."""
    root, text = Path(sysconfig.get_path("stdlib")), bytearray()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        if {"site-packages", "dist-packages", "test", "tests"}.isdisjoint(path.relative_to(root).parts):
            text += path.read_bytes()
            if size is not None and len(text) >= size:
                break
    return text[:size]


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        return torch.add(x, self.mlp(self.norm_2(x)))


class ByteGPT(nn.Module):
    """(batch, length) bytes as int64 -> (batch, length, 256) logits of the byte that follows each."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.byte(x) + self.place(place))))
        return logits


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats a byte, of text[:, 1:] given what stands before."""
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small byte-level GPT on Python's standard library.")
    parser.add_argument("--steps", type=int, help="stop after so many steps (default: after one epoch)")
    parser.add_argument("--documents", type=int, help="use only the first N documents (default: all)")
    parser.add_argument("--batch", type=int, default=32, help="documents a step, over all ranks")
    parser.add_argument("--ckpt-dir", default="train-bytes-ckpt", help="a folder that all nodes share")
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--keep", type=int, default=3, help="how many checkpoints stay")
    parser.add_argument("--loader-workers", type=int, default=0, help="processes that fetch samples ahead, for each rank")
    parser.add_argument("--log-dir", help="rank 0 appends step, loss, time to metrics.jsonl there")
    return parser.parse_args(argv)


def train(args: argparse.Namespace, at_step: Callable[[int], None] = lambda step: None) -> None:
    """Train to the end of the data.  `at_step(step)` is called at each step's beginning."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(SEED)
    bare = ByteGPT()
    model = DistributedDataParallel(bare) if dist.is_initialized() else bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    run = eh.init()  # eh
    dataset = Documents(args.documents)
    stream = eh.SampleStream(len(dataset), global_batch=args.batch, seed=SEED, epochs=1)  # eh
    loader = eh.Loader(dataset, stream, num_workers=args.loader_workers)  # eh
    state = eh.TrainState(model=model, optimizer=optimizer, stream=stream)  # eh
    checkpoints = eh.Checkpoints(args.ckpt_dir, state, every=args.every, keep=args.keep)  # eh

    for step, batch in run.steps(loader, checkpoints):  # eh
        at_step(step)
        loss = loss_of(model, batch.data) * batch.weight  # eh: shares may be uneven; the weight makes up for it
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        if world > 1:
            dist.all_reduce(mean)
        if rank == 0:
            report(args.log_dir, {"step": step, "loss": mean.item() / world, "at": time.time(), "gen": run.generation, "world": world})
        if step == args.steps:
            run.stop()  # eh

    if dist.is_initialized():
        dist.destroy_process_group()


def report(log_dir: str | None, row: dict[str, float]) -> None:
    if row["step"] % 50 == 0:
        print(f"step {row['step']}: loss {row['loss']:.3f}", flush=True)
    if log_dir is not None:
        with open(f"{log_dir}/metrics.jsonl", "a") as out:
            print(json.dumps(row), file=out)


if __name__ == "__main__":
    train(arguments(None))
