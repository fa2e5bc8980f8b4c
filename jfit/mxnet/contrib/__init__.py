"""`mx.contrib`: mixed precision, text, and older interfaces."""
