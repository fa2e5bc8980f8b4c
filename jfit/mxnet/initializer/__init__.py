"""MXNet's initializers: classes that write an NDArray by the name of its parameter."""
