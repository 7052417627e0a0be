"""A script as Accelerate's text example: a classifier of sentences, padded to the longest of a batch, accumulation."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class Sentences(torch.utils.data.Dataset):
    """Sentences of different lengths."""

    def __init__(self, count=256):
        chance = torch.Generator().manual_seed(0)
        lengths = torch.randint(4, 16, (count,), generator=chance).tolist()
        self.rows = [torch.randint(1, 100, (length,), generator=chance).tolist() for length in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": len(self.rows[index]) % 2}


def collate(samples):
    """Pad to the longest."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
    ids = torch.tensor(rows)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(42)
    config = BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    loader = DataLoader(Sentences(), shuffle=True, collate_fn=collate, batch_size=8)
    scheduler = get_linear_schedule_with_warmup(optimizer, 5, 100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(3):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
