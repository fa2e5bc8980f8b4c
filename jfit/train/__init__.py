"""Training over epochs: `fit`, the `Run` that it returns, callbacks, evaluation, prediction and checkpoints."""
