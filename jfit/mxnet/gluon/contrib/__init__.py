"""gluon's contrib packages."""
