"""torch's own RNN, GRU and LSTM, where the cell is exactly theirs."""
