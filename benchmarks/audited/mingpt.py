"""A script as minGPT's distributed one: a Trainer with gradient clipping and AdamW, on a character dataset."""

import torch
import torch.distributed as dist
from gpt import BLOCK, GPT, WORDS
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Characters(Dataset):
    """Crops of a text, and the same one character later."""

    def __init__(self):
        self.text = torch.randint(WORDS, (4096,), generator=torch.Generator().manual_seed(0)).tolist()

    def __len__(self):
        return len(self.text) - BLOCK

    def __getitem__(self, index):
        chunk = self.text[index : index + BLOCK + 1]
        return torch.tensor(chunk[:-1]), torch.tensor(chunk[1:])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    dataset = Characters()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    loader = DataLoader(dataset, batch_size=16, num_workers=2, sampler=DistributedSampler(dataset))
    for epoch in range(1):
        loader.sampler.set_epoch(epoch)
        for source, targets in loader:
            with torch.set_grad_enabled(True), torch.amp.autocast("cpu", dtype=torch.bfloat16):
                _, loss = model(source, targets)
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
