"""A script as the Trainer's language modeling example: a causal model, labels that are ignored, accumulation."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Answers(torch.utils.data.Dataset):
    """Texts whose first part is a prompt that does not count."""

    def __len__(self):
        return 192

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        ids = torch.randint(100, (16,), generator=chance)
        labels = ids.clone()
        labels[: int(torch.randint(1, 14, (), generator=chance))] = -100
        return {"input_ids": ids, "labels": labels}


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2,
            use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=Answers()).train()


if __name__ == "__main__":
    main()
