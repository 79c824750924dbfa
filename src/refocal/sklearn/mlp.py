"""A small network with the focal loss."""

from __future__ import annotations

import itertools
from typing import Any, Self

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from refocal.extras import needs
from refocal.sklearn._base import FocalClassifier, as_softmax
from refocal.sklearn._gradients import Floats


class FocalMLPClassifier(FocalClassifier):
    r"""A network of fully connected layers with the focal loss, whose ``predict_proba`` is the posterior.

    By default it is the paper's: one hidden layer of 64 rectified units, trained by SGD with momentum. It
    needs PyTorch. Scale the features, and mind that a network that fits its training data too well is
    overconfident whatever the loss: `CalibratedPosterior` sees that.

    Args:
        gamma: The focal loss's, a number >= 0.
        alpha: With two classes the weight of the second against 1 - alpha for the first, in (0, 1), or None.
        class_weight: A dictionary, "balanced", or None. Weights change the decisions of ``predict``; the
            probabilities are those of the data as it is.
        hidden_layer_sizes: Units of each hidden layer.
        solver: "sgd", with momentum 0.9, or "adam".
        learning_rate: Of the solver, > 0.
        batch_size: Rows of a step.
        max_iter: Passes over the data.
        weight_decay: Of the solver, >= 0.
        early_stopping: Whether to hold out a part of the data and to keep the pass with the least negative
            log-likelihood of the posterior there.
        validation_fraction: That part.
        n_iter_no_change: Stop after so many passes without a better one.
        random_state: Of the start, the batches and the part held out.
        device: Of PyTorch.

    Attributes:
        network_: The ``torch.nn.Sequential``.
        n_iter_: Passes that were made.
        validation_nll_: That of the kept pass, with early stopping.
        objective_: What was trained with, `refocal.Focal`, or `refocal.SigmoidFocal` with two classes: its
            ``posterior`` of ``decision_function`` is the probability of each class, or of the second of two.
        classes_: The labels.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(2000, 2))
        >>> posterior = 1 / (1 + np.exp(3 - 2 * X[:, 0]))
        >>> y = rng.random(2000) < posterior
        >>> model = FocalMLPClassifier(gamma=2.0, max_iter=10, random_state=0).fit(X, y)
        >>> bool(np.abs(model.predict_proba(X)[:, 1] - posterior).mean() < 0.05)
        True
    """

    def __init__(
        self,
        gamma: float = 2.0,
        *,
        alpha: float | None = None,
        class_weight: Any = None,
        hidden_layer_sizes: Any = (64,),
        solver: str = "sgd",
        learning_rate: float = 0.01,
        batch_size: int = 64,
        max_iter: int = 100,
        weight_decay: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.gamma = gamma
        self.alpha = alpha
        self.class_weight = class_weight
        self.hidden_layer_sizes = hidden_layer_sizes
        self.solver = solver
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network.

        Args:
            X: Features.
            y: Labels.
            sample_weight: A number >= 0 for each row.

        Returns:
            The classifier itself.
        """
        torch = _torch()
        if self.solver not in ("sgd", "adam"):
            raise ValueError(f"solver must be 'sgd' or 'adam', got {self.solver!r}")
        X, y = validate_data(self, X, y, dtype=np.float32)
        codes, weights, prior = self._start(X, y, sample_weight)
        weights = weights if weights.size else np.ones(len(codes))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = np.arange(len(codes))
        held_out = rows[:0]
        if self.early_stopping:
            rows, held_out = train_test_split(
                rows, test_size=self.validation_fraction, stratify=codes, random_state=seed
            )

        def tensors(at: Any) -> list[Any]:
            arrays = (X[at], codes[at].astype(np.int64), (weights[at] / weights.mean()).astype(np.float32))
            return [torch.from_numpy(array).to(self.device) for array in arrays]

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._train(torch, tensors(rows), tensors(held_out) if self.early_stopping else None, prior)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the logits: with two classes the second one's lead, else one for each class."""
        self._check_fitted()
        torch = _torch()
        X = validate_data(self, X, dtype=np.float64, reset=False)
        with torch.no_grad():
            logits: Floats = self.network_(torch.tensor(X, device=self.device)).cpu().numpy()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def _train(self, torch: Any, train: list[Any], held_out: list[Any] | None, prior: Floats) -> None:
        from refocal.torch import focal_loss

        network = self._network(torch, train[0].shape[1], prior)
        options = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.solver == "adam":
            optimizer = torch.optim.Adam(network.parameters(), **options)
        else:
            optimizer = torch.optim.SGD(network.parameters(), momentum=0.9, **options)
        class_weight = torch.tensor(self.class_weight_, dtype=torch.float32, device=self.device)
        least, best, since = float("inf"), None, 0
        for epoch in range(self.max_iter):
            for batch in torch.randperm(len(train[0])).split(self.batch_size):
                x, labels, weight = (part[batch] for part in train)
                losses = focal_loss(
                    network(x), labels, gamma=float(self.gamma), weight=class_weight, reduction="none"
                )
                optimizer.zero_grad()
                (weight * losses).mean().backward()
                optimizer.step()
            self.n_iter_ = epoch + 1
            if held_out is not None:
                nll = self._nll(torch, network, *held_out)
                since = 0 if nll < least else since + 1
                if nll < least:
                    least, best = nll, {k: v.clone() for k, v in network.state_dict().items()}
                if since >= self.n_iter_no_change:
                    break
        if best is not None:
            network.load_state_dict(best)
            self.validation_nll_ = least
        self.network_ = network.eval().double()  # so that a row's logits do not depend on its batch

    def _network(self, torch: Any, n_features: int, prior: Floats) -> Any:
        sizes = [n_features, *np.atleast_1d(self.hidden_layer_sizes).tolist(), len(prior)]
        layers = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        with torch.no_grad():  # the last bias starts at the minimiser of the class prior
            layers[-2].bias += torch.from_numpy(np.asarray(as_softmax(self.objective_).logits(prior))).float()
        return torch.nn.Sequential(*layers[:-1]).to(self.device)

    def _nll(self, torch: Any, network: Any, x: Any, labels: Any, weight: Any) -> float:
        with torch.no_grad():
            log_probs = as_softmax(self.objective_).log_posterior(network(x))
            losses = -log_probs[torch.arange(len(labels)), labels]
        return float((weight * losses).sum() / weight.sum())


def _torch() -> Any:
    with needs("FocalMLPClassifier", "torch"):
        import torch
    return torch
