"""Train a small convolutional network, written as a Symbol, on scikit-learn's handwritten digits (1797 images, 8 x 8).

    python examples/digits.py

Writes a checkpoint, history.csv, curves.png, graph.mmd and, if graphviz is installed, graph.svg to runs/demo/.
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import jfit
from jfit import sym

DIRECTORY = Path("runs/demo")
NEEDED = 0.98
BATCH, EPOCHS = 64, 20


def digits(seed: int = 0, train_rows: int = 1437) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Shuffle and split the digits: (training, validation), each (images (rows, 1, 8, 8) in [0, 1], labels (rows,) int32)."""
    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, None]  # (rows, 1, 8, 8)
    labels = bunch.target.astype(np.int32)  # (rows,)
    order = np.random.default_rng(seed).permutation(len(images))
    train, valid = order[:train_rows], order[train_rows:]
    return (images[train], labels[train]), (images[valid], labels[valid])


def block(x: sym.Symbol, filters: int, name: str) -> sym.Symbol:
    """3 x 3 convolution, batch normalization, ReLU."""
    x = sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=name)
    x = sym.BatchNorm(x, fix_gamma=False, name=f"{name}_norm")
    return sym.Activation(x, act_type="relu", name=f"{name}_relu")


def network(classes: int = 10) -> sym.Symbol:
    """Two convolution blocks with pooling, a dense layer with dropout, and a SoftmaxOutput head (cross-entropy loss)."""
    x = block(sym.Variable("data"), 32, "conv1")
    x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool1")
    x = block(x, 64, "conv2")
    x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool2")
    x = sym.FullyConnected(sym.Flatten(x, name="flat"), num_hidden=64, name="hidden")
    x = sym.Dropout(sym.Activation(x, act_type="relu", name="hidden_relu"), p=0.3, name="drop")
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=classes, name="scores"), name="softmax")


def draw(net: sym.Symbol, directory: Path) -> None:
    """Write the graph as Mermaid text, and as SVG if graphviz is installed."""
    (directory / "graph.mmd").write_text(net.mermaid(), encoding="utf-8")
    if shutil.which("dot"):
        net.graphviz().render(outfile=str(directory / "graph.svg"), cleanup=True)


def main() -> int:
    shutil.rmtree(DIRECTORY, ignore_errors=True)  # no leftovers of an earlier run
    train, valid = digits()
    net = network()
    print("The first run compiles for 20 to 60 seconds; the training itself takes a few.", flush=True)
    started = time.perf_counter()
    run = jfit.fit(
        net,
        train,
        eval_data=valid,
        batch_size=BATCH,
        num_epoch=EPOCHS,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.004},
        schedule="cosine",
        eval_metric="acc",
        directory=str(DIRECTORY),
        checkpoint=str(DIRECTORY / "checkpoint"),
        progress=True,
        seed=0,
    )
    seconds = time.perf_counter() - started
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    run.history.to_csv(DIRECTORY / "history.csv")
    run.plot(DIRECTORY / "curves.png")
    draw(net, DIRECTORY)

    accuracy = run.score(valid)["accuracy"]
    compiling = sum(row.get("compile_time") or 0.0 for row in run.history.epochs)
    print(f"validation accuracy {accuracy:.4f} on {len(valid[0])} images, see {DIRECTORY}/")
    print(f"{seconds:.1f} s of training, of which {compiling:.1f} s compiled the programs")
    if accuracy < NEEDED:
        print(f"The validation accuracy is {accuracy:.4f}, expected at least {NEEDED}: training is worse than it should be.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
