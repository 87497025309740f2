"""A small GPT as a LightningModule, for DDP, FSDP, FSDP2 and DeepSpeed."""

import math
from typing import Any, Tuple

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional

Batch = Tuple[Tensor, Tensor]


class Block(nn.Module):
    """Causal self-attention and two linear layers: what sharding strategies take for a unit.

    Args:
        width: Features of each token.
        heads: Heads of the attention; they divide ``width``.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape: batch x tokens x width."""
        features = features + self._attend(self.norm_1(features))
        return features + self.feed_forward(self.norm_2(features))

    def _attend(self, features: Tensor) -> Tensor:
        batch, tokens, width = features.shape
        parts = self.attention_in(features).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class LitGPT(LightningModule):
    """A GPT over bytes, trained by AdamW with a warm-up and a cosine schedule over the whole run.

    The losses are in nats, ``val_bpc`` and ``test_bpc`` in bits per character: an untrained model has about 8.

    Args:
        context: Bytes that are seen at most.
        layers: Number of blocks.
        width: Features of each byte.
        heads: Heads of each block's attention.
        lr: The highest learning rate.
        weight_decay: Weight decay.
        vocabulary: Number of different tokens; 256 for bytes.
    """

    def __init__(
        self,
        context: int = 64,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        lr: float = 2e-3,
        weight_decay: float = 0.1,
        vocabulary: int = 256,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width is {width} and heads is {heads}. HINT: heads must divide width.")
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialize)

    def configure_model(self) -> None:
        """Shard the blocks where the strategy has a device mesh, as FSDP2's has. Others shard by themselves."""
        mesh = getattr(self, "device_mesh", None)  # Lightning before 2.3 has none
        if mesh is None:
            return
        fsdp = _fsdp2()
        if isinstance(self, fsdp.FSDPModule):
            return  # a second fit of the same object
        for block in self.blocks:
            fsdp.fully_shard(block, mesh=mesh["data_parallel"])
        fsdp.fully_shard(self, mesh=mesh["data_parallel"])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the byte after each byte."""
        length, longest = tokens.shape[1], self.positions.num_embeddings
        if length > longest:
            raise ValueError(
                f"The batch has windows of {length} bytes, and the model's context is {longest}. "
                "HINT: Set model.context to data.context."
            )
        features = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            features = block(features)
        return self.head(self.norm(features))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``val_loss`` and ``val_bpc``."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``test_loss`` and ``test_bpc``."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Return the most likely byte after each byte."""
        return self(batch[0]).argmax(dim=-1)

    def configure_optimizers(self) -> Any:
        """Return AdamW with a learning rate that rises for a tenth of the steps and then falls to zero."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        warm_up = max(1, steps // 10)

        def factor(step: int) -> float:
            if step < warm_up:
                return (step + 1) / (warm_up + 1)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, steps - warm_up))))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _loss(self, batch: Batch) -> Tensor:
        tokens, following = batch
        return functional.cross_entropy(self(tokens).flatten(0, 1).float(), following.flatten())

    def _evaluate(self, batch: Batch, name: str) -> None:
        loss = self._loss(batch)
        self.log(f"{name}_loss", loss, sync_dist=True)
        self.log(f"{name}_bpc", loss / math.log(2), prog_bar=True, sync_dist=True)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _fsdp2() -> Any:
    """The module with ``fully_shard``, which was a private one until torch 2.6."""
    from torch.distributed import fsdp

    if hasattr(fsdp, "fully_shard"):
        return fsdp
    from torch.distributed._composable import fsdp as private

    return private
