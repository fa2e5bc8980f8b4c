"""Checks of names that do not fit elsewhere."""


def check_version_and_context(mx):
    return {"version": mx.__version__, "context": str(mx.cpu(1)), "equal": mx.cpu(0) == mx.Context("cpu", 0)}
