"""`mx.rnn`: recurrent cells that compose symbols."""
