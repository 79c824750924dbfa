"""A text classifier trained by the Hugging Face Trainer with the focal loss, and what its scores mean.

Generated messages to a help desk belong to one of four queues; some words say which, many say nothing, and
the smallest queue, "security", gets one message in twenty-five. A tiny BERT that starts at random numbers is
trained by `Trainer` with the focal loss and class weights, as people do for rare classes; nothing is
downloaded. Its softmax scores are then no probabilities, for two reasons, gamma and the weights, and
`FocalLoss.posterior` undoes both.

What for: messages whose queue is not clear go to a person, those below a probability of 0.8. How many is
that, and how many of the others are routed right?

Needs: pip install 'transformers[torch]'
Run: python examples/text_classifier.py [--small] [--out FOLDER]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

import refocal
from refocal.plots import figure_bytes, new_figure, plot_reliability
from refocal.torch import FocalLoss

QUEUES = {
    "billing": "invoice charged refund card payment receipt price twice subscription".split(),
    "delivery": "parcel late courier address arrived box damaged tracking package".split(),
    "account": "login name email settings profile update language delete change".split(),
    "security": "password stolen login suspicious hacked email card strange access".split(),
}
FILLERS = "hello please i my the a was is not again today since help with and can you me it to".split()
SHARES = [0.46, 0.30, 0.20, 0.04]
WORDS = ["[PAD]", "[UNK]", *dict.fromkeys([*FILLERS, *(word for words in QUEUES.values() for word in words)])]
ROUTE_FROM = 0.8
LENGTH = 16


class Messages(Dataset):
    """Generated messages, tokenised, with their queues."""

    def __init__(self, n: int, seed: int, tokenizer: PreTrainedTokenizerFast) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.choice(len(QUEUES), size=n, p=SHARES)
        texts = []
        for label in self.labels:
            own, words = list(QUEUES.values())[label], []
            for _ in range(rng.integers(5, LENGTH)):
                # One word in six is the queue's own, one in ten that of any queue, and the rest says nothing.
                u = rng.random()
                other = list(QUEUES.values())[rng.integers(len(QUEUES))]
                words.append(str(rng.choice(own if u < 1 / 6 else other if u < 4 / 15 else FILLERS)))
            texts.append(" ".join(words))
        self.tokens = tokenizer(texts, padding="max_length", max_length=LENGTH, return_tensors="pt")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = {name: self.tokens[name][i] for name in ("input_ids", "attention_mask")}
        return row | {"labels": torch.tensor(int(self.labels[i]))}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokeniser with one number for each word that is known."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def train(messages: Messages, criterion: FocalLoss, n_epochs: int, folder: str) -> Trainer:
    """Train a tiny BERT; the loss is all that differs from any other use of the Trainer."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=LENGTH,
        num_labels=len(QUEUES),
    )
    options = TrainingArguments(
        folder,
        num_train_epochs=n_epochs,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=500,
        learning_rate=2e-3,
        seed=0,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )

    def compute_loss(outputs, labels, num_items_in_batch=None):
        return criterion(outputs.logits, labels)

    trainer = Trainer(
        BertForSequenceClassification(config), options, train_dataset=messages, compute_loss_func=compute_loss
    )
    trainer.remove_callback(PrinterCallback)  # it prints times, which differ
    trainer.train()
    return trainer


def main(small: bool = False, out: str | Path = "out/examples") -> None:
    """Train, measure and draw."""
    n_train, n_epochs, n_held_out = (600, 2, 600) if small else (6000, 6, 6000)
    tokenizer = make_tokenizer()
    weight = 1 / np.sqrt(SHARES)
    criterion = FocalLoss(gamma=2.0, weight=(weight / weight.mean()).tolist())
    with tempfile.TemporaryDirectory() as folder:
        trainer = train(Messages(n_train, 0, tokenizer), criterion, n_epochs, folder)
        found = trainer.predict(Messages(n_held_out, 1, tokenizer))
    logits, labels = found.predictions.astype(np.float64), found.label_ids
    half = n_held_out // 2
    choice = refocal.choose_calibration(logits[:half], labels[:half], criterion.objective)
    logits, labels = logits[half:], labels[half:]
    security = list(QUEUES).index("security")
    print(f"held-out messages: {len(labels)}, about security: {(labels == security).sum()}")
    print("scores         ECE    NLL    about security  routed  of them right  of all right")
    stats = {}
    for name in dict.fromkeys(["raw", "psi", choice.winner]):
        probs = choice.apply(logits, method=name)
        stats[name] = refocal.CalibrationStats().update(probs, labels)
        ece, nll = refocal.ece(probs, labels), refocal.nll(probs, labels)
        right, routed = probs.argmax(axis=1) == labels, probs.max(axis=1) >= ROUTE_FROM
        of_routed = f"{right[routed].mean():.2f}" if routed.any() else "-"
        print(
            f"{name:13}  {ece:.3f}  {nll:.3f}  {probs[:, security].sum():<14.0f}  {routed.mean():.2f}    "
            f"{of_routed:13}  {right.mean():.3f}"
        )
    print(f"chosen on the other half: {choice.winner}")

    figure = new_figure(5.2, 5.4)
    ax = plot_reliability(stats, ax=figure.subplots(), title="is it the right queue?")
    ax.axvline(ROUTE_FROM, color="0.6", linewidth=1, linestyle=":")
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "text_classifier.png").write_bytes(figure_bytes(figure, dpi=110))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test: numbers mean little")
    parser.add_argument("--out", default="out/examples", help="folder for the figure")
    arguments = parser.parse_args()
    main(arguments.small, arguments.out)
